"""Where tables are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resources.lakehouse import Lakehouse

if TYPE_CHECKING:
    from pathlib import Path


def test_tables_are_below_their_topology() -> None:
    lakehouse = Lakehouse("/lake")
    assert lakehouse.table("shop", "orders") == "/lake/shop/orders"


def test_a_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lakehouse(".lake").table("shop", "orders") == f"{tmp_path}/.lake/shop/orders"


@pytest.mark.parametrize("root", ["s3a://bucket/lake", "s3a://bucket/lake/"])
def test_an_object_store_is_left_as_it_is(root: str) -> None:
    assert Lakehouse(root).table("shop", "orders") == "s3a://bucket/lake/shop/orders"
