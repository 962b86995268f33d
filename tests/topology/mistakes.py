"""Every mistake is a TopologyError that names the node, the columns it has, a remedy and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark.topology import (
    Consumed,
    JoinWindows,
    TopologyError,
    Versioned,
)
from spark.topology.handles import KTable
from tests.topology.shop import Shop

ORDER_COLUMNS = "order_id bigint, customer_id bigint, sku string, amount decimal(12,2)"
CUSTOMER_COLUMNS = "customer_id bigint, name string, country string"
JOINED = f"left has: {ORDER_COLUMNS}\n  right has: {CUSTOMER_COLUMNS}"
LEFT_ALONE = f"left has: {ORDER_COLUMNS}"
IT = f"it has: {ORDER_COLUMNS}"
Act = Callable[[Shop], object]
WINDOWS = JoinWindows.of("10s", grace="1m")


def prices(shop: Shop) -> KTable:
    """A versioned table."""
    declared = Consumed.json(key="sku string", value="price int")
    return shop.builder.table("prices", declared, versioned=Versioned("1d"))


def shown(file: str) -> Path:
    """The path of a file as messages show it: relative to the working directory, if it is below it."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def raised(act: Act, by: Callable[..., object] | None = None) -> str:
    """The message of a mistake made on the one line of a lambda, or of one it calls; its last line is that line."""
    with pytest.raises(TopologyError) as caught:
        act(Shop())
    message = str(caught.value)
    code = (by or act).__code__
    assert message.endswith(f"\n  at {shown(code.co_filename)}:{code.co_firstlineno}")
    assert len(message.splitlines()) >= 3, "what, what to do, where"
    return message
