--- setup
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE types (
  id int PRIMARY KEY,
  t_boolean boolean,
  t_smallint smallint,
  t_int int,
  t_bigint bigint,
  t_real real,
  t_double double precision,
  t_numeric numeric(12,4),
  t_numeric38 numeric(38,10),
  t_numeric_any numeric,
  t_money money,
  t_text text,
  t_varchar varchar(20),
  t_char char(5),
  t_citext citext,
  t_bytea bytea,
  t_bit bit(1),
  t_bits bit(12),
  t_varbit varbit(20),
  t_date date,
  t_time time,
  t_time3 time(3),
  t_timetz timetz,
  t_timestamp timestamp,
  t_timestamp3 timestamp(3),
  t_timestamptz timestamptz,
  t_interval interval,
  t_uuid uuid,
  t_json json,
  t_jsonb jsonb,
  t_xml xml,
  t_enum mood,
  t_domain positive,
  t_hstore hstore,
  t_inet inet,
  t_cidr cidr,
  t_macaddr macaddr,
  t_point point,
  t_int4range int4range,
  t_texts text[],
  t_ints int[],
  t_bigints bigint[],
  t_numerics numeric(8,2)[],
  t_booleans boolean[],
  t_dates date[],
  t_timestamps timestamp[],
  t_timestamptzs timestamptz[],
  t_uuids uuid[],
  t_jsonbs jsonb[],
  t_enums mood[],
  t_default int DEFAULT 7
);

--- usual values
INSERT INTO types VALUES (1, true, 1, 2, 3, 1.5, 2.5, 14.1234, 1234567890123456789.0123456789, 1.50, 12.34,
  'text', 'varchar', 'char', 'CiText', '\x00ff10', B'1', B'101010101010', B'10101', '2024-02-29', '12:34:56.123456',
  '12:34:56.123', '12:34:56.123456+02', '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56.123',
  '2024-02-29 12:34:56.123456+02', '1 year 2 mons 3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
  '{"a": 1.10}', '{"a": 1.10}', '<a>1</a>', 'happy', 5, 'k=>v,n=>NULL', '192.168.0.1/24', '10.0.0.0/8',
  '08:00:2b:01:02:03', '(1.5,2.5)', '[1,10)', ARRAY['a', NULL, 'c'], ARRAY[1, NULL, 3], ARRAY[9000000000],
  ARRAY[1.10, NULL], ARRAY[true, false], ARRAY['2024-02-29'::date], ARRAY['2024-02-29 12:34:56.123456'::timestamp],
  ARRAY['2024-02-29 12:34:56.123456+02'::timestamptz], ARRAY['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid],
  ARRAY['{"a": 1.10}'::jsonb], ARRAY['sad'::mood], 8);

--- nulls
INSERT INTO types (id, t_default) VALUES (2, NULL);

--- least values
INSERT INTO types VALUES (3, false, -32768, -2147483648, -9223372036854775808, -3.4028235e38, -1.7976931348623157e308,
  -99999999.9999, -9999999999999999999999999999.9999999999, -1e30, -92233720368547758.08,
  '', '', '', '', '\x', B'0', B'000000000000', B'', '0001-01-01', '00:00:00', '00:00:00', '00:00:00+14',
  '0001-01-01 00:00:00', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', '-178000 years',
  '00000000-0000-0000-0000-000000000000', 'null', 'null', '', 'sad', 1, '', '::1', '::/0', '00:00:00:00:00:00', '(0,0)',
  'empty', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', -1);

--- greatest values
INSERT INTO types VALUES (4, true, 32767, 2147483647, 9223372036854775807, 3.4028235e38, 1.7976931348623157e308,
  99999999.9999, 9999999999999999999999999999.9999999999, 1e30, 92233720368547758.07,
  E'\U0001F600 "quoted" \\ \t', 'ü', 'abcde', 'ß', '\xffffffff', B'1', B'111111111111', B'11111111111111111111',
  '9999-12-31', '23:59:59.999999', '23:59:59.999', '23:59:59.999999-12', '9999-12-31 23:59:59.999999',
  '9999-12-31 23:59:59.999', '9999-12-31 23:59:59.999999+00', '178000 years 11 mons 30 days',
  'ffffffff-ffff-ffff-ffff-ffffffffffff', '[1, "2"]', '{"b": [null, true]}', '<a/>', 'happy', 2147483647,
  '"a b"=>"c,d"', '255.255.255.255', '255.255.255.255/32', 'ff:ff:ff:ff:ff:ff', '(1e300,-1e300)', '(,)',
  ARRAY['__debezium_unavailable_value'], ARRAY[-2147483648], ARRAY[-9223372036854775808], ARRAY[999999.99], ARRAY[true],
  ARRAY['9999-12-31'::date], ARRAY['9999-12-31 23:59:59.999999'::timestamp],
  ARRAY['9999-12-31 23:59:59.999999+00'::timestamptz], ARRAY['ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid],
  ARRAY['[]'::jsonb], ARRAY['sad'::mood, 'happy'], 2147483647);

--- times before 1970
INSERT INTO types (id, t_date, t_timestamp, t_timestamp3, t_timestamptz)
  VALUES (5, '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '1969-12-31 23:59:59.999999+00');

--- NaN
INSERT INTO types (id, t_real, t_double, t_numeric, t_numeric_any) VALUES (6, 'NaN', 'NaN', 'NaN', 'NaN');

--- infinity of floats
INSERT INTO types (id, t_real, t_double) VALUES (7, 'Infinity', '-Infinity');

--- infinity of times
INSERT INTO types (id, t_date, t_timestamp, t_timestamptz) VALUES (8, 'infinity', 'infinity', '-infinity');

--- 24:00
INSERT INTO types (id, t_time) VALUES (9, '24:00:00');

--- before the Gregorian calendar, and before year 1
INSERT INTO types (id, t_date, t_timestamp, t_timestamptz)
  VALUES (10, '1500-01-01', '1500-01-01 00:00:00', '1500-01-01 00:00:00+00'),
    (11, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '0044-03-15 12:00:00+00 BC');
