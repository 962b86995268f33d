"""Arguments and options that several commands have."""

from __future__ import annotations

import math

import click

POSITIVE = click.IntRange(min=1)
VERSION = click.IntRange(min=0)


class Seconds(click.FloatRange):
    """A number of seconds. Rejects `nan`, which is in every range."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the value of an option to seconds."""
        seconds: float = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number of seconds", param, ctx) if math.isnan(seconds) else seconds


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
table_argument = click.argument("name", metavar="TOPOLOGY.TABLE")
topic_argument = click.argument("name", metavar="TOPOLOGY.TOPIC")
topology_or_table_argument = click.argument("name", metavar="TOPOLOGY[.TABLE]")
topology_or_topic_argument = click.argument("name", metavar="TOPOLOGY[.TOPIC]")
any_argument = click.argument("name", metavar="TOPOLOGY[.TOPIC|.TABLE]")
