"""The errors of the engine. Every message names the table or topic, the cause, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.errors import PySparkException

CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


def condition(error: PySparkException) -> str:
    """Return the error class of Spark or Delta; empty if there is none.

    If the parameters of the message are longer than 1,024 characters (`spark.connect.grpc.maxMetadataSize`), Spark
    Connect sends the class in the message only. A commit that lost a race has the winner's position among them.
    """
    match = CONDITION.search(str(error))
    return error.getCondition() or (match.group(1) if match else "")


def cause(error: PySparkException) -> str:
    """Return the innermost cause of a Spark error, in one line."""
    causes = CAUSE.findall(str(error))
    return str(causes[-1] if causes else str(error).partition("\n")[0])


def engine_died(error: PySparkException) -> bool:
    """Return whether the engine died at work: errors that it answers itself are raised as subclasses of these."""
    # Imported here: queries need the errors of this module, and no Spark, whose import takes a second.
    from pyspark.errors.exceptions.base import RetriesExceeded
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return type(error) in (RetriesExceeded, SparkConnectGrpcException)


class EngineError(Exception):
    """A landing or a step that cannot go on.

    The base class of the errors of the engine: look up the subclass that was raised. The landing or step that failed
    committed nothing; the rest of the tick went on.
    """


class OffsetsExpired(EngineError):
    """Kafka's retention removed records that were not landed yet.

    Raise `retention.ms` of the topic above the longest pause between ticks. To go on without the lost records, declare
    `StreamsBuilder(..., on_data_loss="ledger")`, which writes the missing offsets into the commit. Where the message
    names an ACL or partitions that were added, do what it says.
    """


class TopicUnordered(EngineError):
    """An event that empties a table has no order among the records of the topic's other partitions.

    Give the topic of the table one partition, or leave out `truncate=True` of its `Consumed.debezium`: then such an
    event goes into quarantine.
    """


class ValuesUnknown(EngineError):
    """A table is not published, because rows that it is computed from have a value that no event has told yet.

    The database did not log the value, and the topic has no earlier event with it. Update the rows in the database so
    that the columns change, or take a snapshot of the table by the connector's signals (`execute-snapshot`), and run a
    tick. If only the partition with the value lags, the next tick has it.
    """


class TopicRecreated(EngineError):
    """The topic is not the one whose offsets the landing holds.

    Land the topic under another topology name, or move its landing away to start over; then run a tick and `tidetable
    rebuild --downstream` for the tables that read it. `on_data_loss` does not change this: the offsets of the two
    topics would mix.
    """


class PositionLost(EngineError):
    """A table no longer says which inputs it was computed from.

    Run `tidetable rebuild TOPOLOGY.TABLE` if somebody restored or changed the table by hand. If the folder holds a
    table that Tidetable did not make, move it away or rename the table of the topology.
    """


class LogBroken(EngineError):
    """The log of a stored table cannot be read, or its properties let Delta drop the transactions of its commits.

    Do what the message says: unset the table property, remove the broken checkpoint, correct the credentials of the
    object store, or put the folder back from a copy.
    """


class FormatUnknown(EngineError):
    """A stored table is in a format that this version of Tidetable does not know: a later version wrote it.

    Install the version that wrote it, or a later one. No table was changed.
    """


UNREADABLE: Final = (PositionLost, LogBroken, FormatUnknown)
"""What the state of a stored table raises if it cannot be read. Other tables are not concerned."""


class LakesDiffer(EngineError):
    """The client and the engine see different places under the lake's name.

    Mount the same folder on both hosts under the same path, or give both the same endpoint and credentials of the
    object store. No table was changed.
    """


class PlanChanged(EngineError):
    """The table was computed by another definition than the one given.

    Read the difference in the message. If the new definition is meant, run `tidetable rebuild TOPOLOGY.TABLE`, with
    `--downstream` for the tables that are computed from it. A landing cannot be rebuilt: undo the change of its
    declaration, or land the topic under another topology name.
    """


class LeaderChanged(PlanChanged):
    """A table of another topology does not have the key, the columns or the types that this topology reads.

    Correct `key=` and `value=` of the `read_only_table` at the line that the message names, and run `tidetable rebuild`
    for the tables that read it; or let the leader's topology store the columns again.
    """


class InputChanged(EngineError):
    """A stored input is not the table that the position names, or no longer has the versions that a span needs.

    Run `tidetable rebuild` for the tables that read the input. Where a publication raised it, publish to a topic of
    another name, which begins with the whole table.
    """


class ChangesExpired(InputChanged):
    """Delta's retention removed changes of an input that were not stepped yet.

    Run `tidetable rebuild` for the tables that read the input; with `on_data_loss="ledger"` a step does so by itself.
    To prevent it, run ticks before the change feed expires (after a week by default).
    """


class LeaderMissing(EngineError):
    """A table reads a table of another topology that was never computed.

    Run `tidetable run` for the topology of the leader, or correct `from_=` and `lake=` at the line that the message
    names. `read_only_table(..., allow_missing=True)` lets the tables that read it wait.
    """


class ReadOnly(EngineError):
    """A topology tried to write a table of another topology, which alone may write it.

    Nothing was changed. This is an error of Tidetable: please report it with its stack (`tidetable --debug`).
    """


class NoCommonCut(EngineError):
    """The inputs of a step have no versions that agree on every topic that they share.

    Run `tidetable run TOPOLOGY`; if an input cannot step, `tidetable status TOPOLOGY` says why. After a topic was
    created again, rebuild the input that is older.
    """

    slower: str = ""
    """The input that is older than all versions of another one; empty if no input is."""


class ExpressionFailed(EngineError):
    """An expression of the topology failed on a row.

    Correct the expression at the line that the message names (`try_cast`, `try_divide`, a filter before it), or the
    record at its source. `StreamsBuilder(..., ansi=False)` makes the result of an expression that fails null.
    """


class NotCommitted(EngineError):
    """Other writers committed first, several times in a row.

    Run the command again. Dagster retries by itself. If the error stays, stop the other ticks of the topology while
    you rebuild, restore or compact.
    """


class RecordRefused(EngineError):
    """A topic does not accept a record that is published to it: its time or its size is out of bounds.

    Raise the setting of the topic that the message names, or correct the row of that key at its source. As soon as a
    later version of the table has another row of the key, the refused record is left out and counted. To do without a
    record for good, write `tidetable publish TOPOLOGY.TABLE --skip-refused`.
    """

    def __init__(self, why: str, key: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.key = key
        self.headers = headers or {}


class ColumnRefused(EngineError):
    """A published table has a column of a type that the format of its topic cannot hold.

    Only Spark knows the type, so the topology could be built. Cast or rename the column at the line that the message
    names. Nothing was sent.
    """


class NotInQuarantine(EngineError):
    """A record that a command names is not in quarantine.

    `tidetable quarantine list TOPOLOGY.TOPIC` lists the records that are, and their reasons.
    """


class CannotRestore(EngineError):
    """A table cannot be put back to that version or time.

    Choose a version in the range that the message names. A stream cannot be restored, because its consumers already
    have its records: run `tidetable rebuild` if somebody changed it.
    """


class SparkFailed(EngineError):
    """A landing or a step failed in Spark, for example because the disk or the memory is full.

    Free disk space, raise `TIDETABLE_ENGINE_MEMORY`, or limit the work of a tick by `max_records_per_tick`. `tidetable
    --debug` shows Spark's own stack.
    """


class RegistryUnavailable(EngineError):
    """The schema registry of a topic is not set, or does not answer.

    Set `TIDETABLE_SCHEMA_REGISTRY_URL`, or check the network, the credentials and the registry; the message ends with
    the cause. `tidetable up --registry` starts a registry of the lake's own. Nothing was landed; the records are in
    Kafka. Dagster retries by itself.
    """


class RegistryRefused(EngineError):
    """The schema registry refuses a schema: it is not valid, is incompatible with its subject, or may not be written.

    Change the columns as the compatibility of the subject allows, or change the compatibility there. If the credentials
    may not write the subject, register the schema that the message has with other credentials. Nothing was sent.
    """

    def __init__(self, why: str, *, forbidden: bool = False) -> None:
        super().__init__(why)
        self.forbidden = forbidden


class KeySchemaLost(EngineError):
    """The registry no longer has the schema of a published topic's keys under the id that the keys have.

    Restore the schema in the registry under that id, or publish to another topic, which begins with the whole table.
    Nothing was sent.
    """


class SchemaMismatch(EngineError):
    """A topic's declaration does not fit the schemas of its registry.

    Declare the columns as the message says: `tidetable schema declare TOPIC` prints the whole declaration. Nothing was
    landed; the records are in Kafka.
    """


class EngineUnlimited(EngineError):
    """A remote engine does not limit the lengths in Avro records, so one broken record could exhaust its memory.

    Start the engine with the options that the message names. Nothing was landed.
    """


class EngineWithoutPython(EngineError):
    """The engine cannot run the Python workers that decode Protobuf: they are missing, too old, or lack a package.

    Do what the message says: the hosts of the engine need the Python of the client, in the same minor version, with
    pyspark, pyarrow and protobuf. Nothing was landed; the records are in Kafka.
    """
