--- setup
CREATE EXTENSION hstore;
CREATE TABLE customers (
  id int PRIMARY KEY,
  name text NOT NULL,
  country text,
  score int,
  credit numeric(12,2),
  note text,
  profile jsonb,
  photo bytea,
  ratings int[],
  tags text[],
  attributes hstore,
  fees numeric(8,2)[]
);
CREATE TABLE orders (
  order_id int PRIMARY KEY,
  customer_id int REFERENCES customers (id) ON UPDATE CASCADE,
  amount numeric(12,2),
  placed timestamptz,
  status text DEFAULT 'new',
  comment text
);
CREATE TABLE accounts (region text, number int, balance numeric(12,2), memo text, PRIMARY KEY (region, number));
CREATE TABLE debezium_signal (id text PRIMARY KEY, type text NOT NULL, data text);
ALTER TABLE accounts REPLICA IDENTITY FULL;
-- PostgreSQL moves values out of a row of more than 2 kB. Uncompressed, 330 bytes a value make one.
ALTER TABLE customers SET (toast_tuple_target = 128);
ALTER TABLE customers
  ALTER note SET STORAGE EXTERNAL, ALTER profile SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL,
  ALTER ratings SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL, ALTER attributes SET STORAGE EXTERNAL,
  ALTER fees SET STORAGE EXTERNAL;
ALTER TABLE orders SET (toast_tuple_target = 128);
ALTER TABLE orders ALTER comment SET STORAGE EXTERNAL;
ALTER TABLE accounts SET (toast_tuple_target = 128);
ALTER TABLE accounts ALTER memo SET STORAGE EXTERNAL;
CREATE FUNCTION large(seed text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT repeat(seed, 330 / length(seed)) $$;
CREATE PROCEDURE customer(id int, name text, country text, seed text) LANGUAGE sql AS $$
  INSERT INTO customers VALUES (id, name, country, id * 10, id * 100.25, large(seed),
    jsonb_build_object('seed', seed, 'text', large(seed)), convert_to(large(seed), 'UTF8'),
    (SELECT array_agg(id * 1000 + n) FROM generate_series(1, 75) n),
    (SELECT array_agg(seed || n) FROM generate_series(1, 40) n), hstore(ARRAY['seed', 'text'], ARRAY[seed, large(seed)]),
    (SELECT array_agg(id + n / 100.0) FROM generate_series(1, 30) n)) $$;
CALL customer(1, 'Ada', 'DE', 'a1');
CALL customer(2, 'Bob', 'FR', 'b1');
INSERT INTO customers (id, name) VALUES (3, 'Cyd');
INSERT INTO orders VALUES (1, 1, 10.50, '2024-01-01 10:00:00.123456+00', 'new', 'first'),
  (2, 2, 20.00, '2024-01-01 11:00:00+01', 'paid', repeat('c', 2100)), (3, NULL, NULL, NULL, NULL, NULL);
INSERT INTO accounts VALUES ('eu', 1, 1.00, repeat('m', 2100)), ('us', 1, 2.00, 'short');

--- insert
INSERT INTO orders VALUES (4, 1, 40.00, '2024-01-02 00:00:00+00', 'new', NULL);

--- insert a row with large values
CALL customer(4, 'Dot', 'ES', 'd1');

--- update with every large value unchanged
UPDATE customers SET name = 'Ada L.' WHERE id = 1;

--- update one large value, the others unchanged
UPDATE customers SET note = large('a2') WHERE id = 1;

--- update another large value, the first unchanged
UPDATE customers SET ratings = ARRAY[1, NULL, 3], country = 'AT' WHERE id = 1;

--- update of large values to null and to short ones
UPDATE customers SET note = NULL, tags = '{}', profile = '{"short": true}' WHERE id = 2;

--- update with the remaining large values unchanged
UPDATE customers SET score = 21 WHERE id = 2;

--- several rows in one statement
UPDATE customers SET score = score + 1 WHERE id IN (1, 2, 3);

--- an update that changes nothing
UPDATE customers SET name = name WHERE id = 4;

--- order moves to another customer
UPDATE orders SET customer_id = 4, status = 'moved' WHERE order_id = 2;

--- delete
DELETE FROM orders WHERE order_id = 4;

--- delete of a row with large values
WITH moved AS (UPDATE orders SET customer_id = 1 WHERE customer_id = 4 RETURNING 1) SELECT count(*) FROM moved;
DELETE FROM customers WHERE id = 4;

--- a deleted key is used again
CALL customer(4, 'Eve', 'IT', 'e1');

--- the key changes, large values unchanged, the orders follow
UPDATE customers SET id = 10 WHERE id = 1;

--- an update under the new key, large values unchanged
UPDATE customers SET name = 'Ada at 10' WHERE id = 10;

--- the old key is used by another row
CALL customer(1, 'Fay', 'PT', 'f1');

--- the key changes twice in one transaction
BEGIN;
UPDATE customers SET id = 11 WHERE id = 10;
UPDATE customers SET id = 12, name = 'Ada at 12' WHERE id = 11;
COMMIT;

--- two rows exchange their keys
BEGIN;
UPDATE customers SET id = 99 WHERE id = 12;
UPDATE customers SET id = 12 WHERE id = 4;
UPDATE customers SET id = 4 WHERE id = 99;
COMMIT;

--- an update after the exchange, large values unchanged
UPDATE customers SET score = 7 WHERE id IN (4, 12);

--- a transaction over both tables
BEGIN;
CALL customer(5, 'Gus', 'DE', 'g1');
INSERT INTO orders VALUES (5, 5, 55.55, '2024-01-03 12:00:00+00', 'new', repeat('g', 2100));
UPDATE orders SET status = 'paid' WHERE order_id = 5;
UPDATE customers SET score = 55 WHERE id = 5;
DELETE FROM orders WHERE order_id = 3;
COMMIT;

--- insert, update and delete of one key in one transaction
BEGIN;
INSERT INTO orders VALUES (6, 5, 6.00, NULL, 'new', repeat('x', 2100));
UPDATE orders SET amount = 6.50 WHERE order_id = 6;
DELETE FROM orders WHERE order_id = 6;
INSERT INTO orders VALUES (6, 5, 6.75, NULL, 'again', repeat('y', 2100));
UPDATE orders SET status = 'changed' WHERE order_id = 6;
COMMIT;

--- a transaction that is rolled back
BEGIN;
DELETE FROM orders;
ROLLBACK;

--- the key of an order changes, a large comment unchanged
UPDATE orders SET order_id = 20 WHERE order_id = 2;

--- REPLICA IDENTITY FULL: a large value unchanged
UPDATE accounts SET balance = 1.50 WHERE region = 'eu';

--- REPLICA IDENTITY FULL: one column of the key changes
UPDATE accounts SET number = 2 WHERE region = 'eu';

--- REPLICA IDENTITY FULL: delete
DELETE FROM accounts WHERE region = 'us';

--- messages
SELECT pg_logical_emit_message(true, 'shop', 'in a transaction'), pg_logical_emit_message(false, 'shop', 'outside');

--- a heartbeat [heartbeat]
SELECT 1;

--- an incremental snapshot overlaps the stream [quiet]
INSERT INTO debezium_signal VALUES ('snapshot-1', 'execute-snapshot',
  '{"type": "incremental", "data-collections": ["public.customers", "public.orders"]}');
UPDATE customers SET score = 100 WHERE id = 5;
UPDATE orders SET status = 'overlapped' WHERE order_id = 5;

--- an update after the snapshot, large values unchanged
UPDATE customers SET score = 101 WHERE id = 5;

--- a column is added without a default
ALTER TABLE customers ADD COLUMN email text;

--- the added column is written
UPDATE customers SET email = 'gus@example.com' WHERE id = 5;

--- a column is added with a default, which its old rows have at once
ALTER TABLE orders ADD COLUMN channel text DEFAULT 'shop';

--- rows are written with and without the default
INSERT INTO orders VALUES (7, 5, 7.00, NULL, 'new', NULL, 'web');
INSERT INTO orders (order_id, customer_id) VALUES (8, 1);

--- every row is written once more, so that the default arrives
UPDATE orders SET status = status;

--- a numeric is rescaled
ALTER TABLE orders ALTER amount TYPE numeric(14,4);

--- the finer numeric is written, large values unchanged
UPDATE orders SET amount = 14.1234 WHERE order_id IN (1, 6);

--- an int is widened to bigint
ALTER TABLE customers ALTER score TYPE bigint;

--- the wider int is written, large values unchanged
UPDATE customers SET score = 9000000000 WHERE id = 12;

--- a key is widened to bigint, and the column that refers to it
ALTER TABLE customers ALTER id TYPE bigint;
ALTER TABLE orders ALTER customer_id TYPE bigint;

--- rows under the wider key, large values unchanged
UPDATE customers SET name = 'Eve at 12' WHERE id = 12;
CALL customer(6, 'Hal', 'NL', 'h1');
UPDATE customers SET id = 5000000000 WHERE id = 6;
INSERT INTO orders VALUES (9, 5000000000, 9.0009, NULL, 'new', NULL, 'web');

--- a column is made nullable
ALTER TABLE customers ALTER name DROP NOT NULL;

--- null in the nullable column
UPDATE customers SET name = NULL WHERE id = 3;

--- a column is renamed
ALTER TABLE customers RENAME country TO land;

--- the renamed column is written, large values unchanged
UPDATE customers SET land = 'BE' WHERE id = 12;
INSERT INTO customers (id, name, land) VALUES (7, 'Ida', 'LU');

--- every customer is written once more, so that the new name arrives, large values unchanged
UPDATE customers SET score = score;

--- a column is dropped
ALTER TABLE orders DROP COLUMN status;

--- rows without the dropped column, large values unchanged
UPDATE orders SET amount = 20.0001 WHERE order_id IN (5, 20);
DELETE FROM orders WHERE order_id = 8;

--- truncate of one table
TRUNCATE orders;

--- rows after the truncate
INSERT INTO orders (order_id, customer_id, amount) VALUES (1, 12, 1.0001), (30, 5, 30.0003);

--- truncate of both tables in one statement
TRUNCATE customers, orders;

--- rows after both were truncated, under keys that were used before
CALL customer(12, 'Joe', 'US', 'j1');
INSERT INTO orders (order_id, customer_id, amount, comment) VALUES (1, 12, 2.0002, repeat('j', 2100));
UPDATE customers SET name = 'Joe J.' WHERE id = 12;
UPDATE orders SET amount = 2.5 WHERE order_id = 1;
