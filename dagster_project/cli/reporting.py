"""Reports errors of commands: one message each, or tracebacks with `--debug`."""

from __future__ import annotations

import click
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from assets.failures import PERMANENT, TRANSIENT, engine_lost
from assets.suites import BrokenSuite
from dagster_project.discover import BrokenTopology
from dagster_project.project import FolderInUse
from dagster_project.settings import Settings, SettingsError
from resources.jars import JarsUnavailable
from spark.engine.errors import cause, engine_died
from spark.query.errors import QueryError

OWN_ERRORS = (
    *(*TRANSIENT, *PERMANENT, QueryError),
    *(BrokenTopology, BrokenSuite, SettingsError, JarsUnavailable, FolderInUse),
)
"""Errors whose messages say what to do."""


class ErrorReporting(click.Group):
    """A group of commands that reports an error as one message; with --debug, with Python's and Spark's tracebacks."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command, and report its error."""
        if ctx.params["debug"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (RetriesExceeded, SparkConnectGrpcException) as error:
            if not engine_died(error):
                raise _unexpected(error) from error
            remote = Settings.from_environment().tidetable().engine.address
            raise click.ClickException(engine_lost(error, remote)) from error
        except OWN_ERRORS as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:  # the reader of our output has gone; click ends the process
            raise
        except (PySparkException, DeltaError, OSError) as error:
            raise _unexpected(error) from error


def _unexpected(error: Exception) -> click.ClickException:
    """The message for an error of a library or of the operating system."""
    message = cause(error) if isinstance(error, PySparkException) else f"{type(error).__name__}: {error}"
    return click.ClickException(f"{message}\nrun `tidetable --debug` with the same command for the traceback")
