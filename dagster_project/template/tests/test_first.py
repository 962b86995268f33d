"""The first topology, record by record: no broker and no lake, but Java, for Spark."""

from decimal import Decimal

from tidetable.testing import TopologyTestDriver

from topologies.first import topology


def test_a_large_order_has_its_customers_name_until_the_customer_leaves() -> None:
    driver = TopologyTestDriver(topology)
    driver.pipe("orders", key=1, value={"customer_id": 7, "amount": "120.00"})
    driver.expect("large_orders", [])
    driver.pipe("customers", key=7, value={"name": "Ada", "country": "DE"})
    row = {"order_id": 1, "customer_id": 7, "amount": Decimal("120.00"), "name": "Ada", "country": "DE"}
    driver.expect("large_orders", [row])
    driver.pipe("customers", key=7, value=None)
    driver.expect("large_orders", [])
