"""A shop: who ordered what, at which price, and which orders are worth a look."""

from __future__ import annotations

from spark.topology import Consumed, StreamsBuilder

builder = StreamsBuilder("shop")

# A topic as a table: the newest record of every key. A global table is one that everything may look up.
orders = builder.table(
    "orders",
    Consumed.json(
        key="order_id bigint",
        value="customer_id bigint, sku string, quantity int, amount decimal(12,2)",
    ),
)
customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string, country string"))
products = builder.global_table("products", Consumed.json(key="sku string", value="title string, price decimal(12,2)"))

# A topic as a stream: every record is kept, with its own event time.
clicks = builder.stream("clicks", Consumed.json(key="user_id bigint", value="sku string, at timestamp", timestamp="at"))

# A view: no table is stored for it.
tidy = customers.map_values(["trim(name) AS name", "upper(country) AS country"])

# Foreign keys: a changed order, a renamed customer and a renamed product all find the rows they concern.
enriched = orders.join(tidy, on="customer_id", select=["left.*", "right.name", "right.country"]).join(
    products, on="sku", select=["left.*", "right.title"]
)
enriched.materialize("orders_enriched")

# Looked up only: the price stays what it was when the order came, whatever becomes of it later.
priced = orders.left_join(products, on="sku", select=["left.quantity", "right.price AS list_price"], drive="left")
priced.materialize("orders_priced")

# Equal keys: two tables by the same order_id, then a filter.
large = enriched.join(priced, select=["left.name", "left.title", "left.amount", "right.list_price"])
large.filter("amount >= 500").materialize("large_orders")

# Orders whose customer nobody knows (yet).
owned = orders.left_join(customers, on="customer_id", select=["left.*", "right.customer_id AS found"])
owned.filter("found IS NULL").map_values(["customer_id", "amount"]).materialize("orders_unclaimed")

topology = builder.build()
