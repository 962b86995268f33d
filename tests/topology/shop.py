"""The shop of design and README: orders, customers and products, declared once for all these tests."""

from __future__ import annotations

from spark.topology import Consumed, StreamsBuilder, Topology

ORDERS = Consumed.json(key="order_id bigint", value="customer_id bigint, sku string, amount decimal(12,2)")
CUSTOMERS = Consumed.json(key="customer_id bigint", value="name string, country string")
PRODUCTS = Consumed.json(key="sku string", value="title string")
CLICKS = Consumed.json(key="user_id bigint", value="sku string, at timestamp", timestamp="at")


class Shop:
    """A builder with the shop's topics declared, and their handles."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder("shop")
        self.orders = self.builder.table("orders", ORDERS)
        self.customers = self.builder.table("customers", CUSTOMERS)
        self.products = self.builder.global_table("products", PRODUCTS)
        self.clicks = self.builder.stream("clicks", CLICKS)


def whole_shop() -> Topology:
    """Every operator and every kind of join at work."""
    shop = Shop()
    enriched = shop.orders.join(shop.customers, on="customer_id", select=["left.*", "right.name", "right.country"])
    enriched.materialize("orders_enriched")
    titled = enriched.left_join(shop.products, on="sku", select=["left.*", "right.title AS product"], drive="left")
    titled.materialize("orders_titled")
    large = shop.orders.filter("amount > 100").map_values(["customer_id", "sku", "amount * 1.25 AS gross"])
    large.left_join(shop.orders, select=["left.gross", "right.sku"]).materialize("large_orders")
    large.join(shop.products, on="sku", select=["left.*", "right.*"]).materialize("priced")
    return shop.builder.build()
