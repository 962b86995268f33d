"""Orders with their customer's name and country, and the large ones among them."""

from tidetable import Consumed, StreamsBuilder

builder = StreamsBuilder("first")
orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount decimal(12,2)"))
customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string, country string"))

enriched = orders.join(customers, on="customer_id", select=["left.*", "right.name", "right.country"])
enriched.materialize("orders_enriched")
enriched.filter("amount >= 100").materialize("large_orders")

topology = builder.build()
