"""The parts of a record."""

from typing import Literal

Part = Literal["key", "value"]
"""A key and a value may have different formats."""
