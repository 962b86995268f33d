"""What Dagster loads: the topologies of this project, with the settings of tidetable.toml."""

from pathlib import Path

import dagster as dg
import tidetable

settings = tidetable.Settings.from_environment(folder=Path(__file__).parent)
defs = dg.Definitions.merge(
    tidetable.build_definitions(settings=settings),
    dg.Definitions(executor=dg.in_process_executor),  # Spark runs elsewhere: a process for every op would only wait
)
