"""The errors of queries. Every message names the table, and what there is or what to do."""

from __future__ import annotations


class QueryError(Exception):
    """A query that cannot be answered.

    The base class of the errors of queries: look up the subclass that was raised. A query changes nothing.
    """


class NameUnknown(QueryError):
    """The lake has no such table, or the table has no such column.

    Choose one of the names in the message. A table exists from its first step on: run `tidetable run TOPOLOGY`.
    """


class KeyRefused(QueryError):
    """The value is not a key of the table: it has another type, or the wrong number of columns.

    Pass a value of the type that the message names: a tuple in the order of the key columns, or a dict by their names.
    """


class QueryUnsupported(QueryError):
    """The table does not answer this kind of query: it has no windows, or it is not a versioned table.

    Use the query that the message names, or declare the table with windows or with `Versioned`.
    """


class QueryTimeout(QueryError):
    """The query took longer than it was given.

    Ask for fewer rows: a key, a smaller range, or a `limit`. `tidetable compact` sorts a table by its key, which makes
    such queries quicker. The time of the read service is the setting `serve_seconds`.
    """


class NotWhole(QueryError):
    """The table has no rows of its present definition yet: it was created, or is being rebuilt, and no step committed.

    Run `tidetable run TOPOLOGY`, or wait until the step that runs has committed; then read again.
    """


class NotCovered(QueryError):
    """The table did not reach the offsets of `at_least` before the deadline.

    Run a tick, or pass a longer `timeout`. If the message says that the table is not computed from the topic, name one
    of its own topics.
    """


class VersionGone(QueryError):
    """The version no longer has its files or its log: VACUUM or the retention of the log removed them.

    Call `refresh()` to read the newest version, or choose a version that is younger. Read pinned versions within
    `delta.deletedFileRetentionDuration` (a week) of their replacement.
    """


class LayoutUnknown(QueryError):
    """The table has a form that queries do not read: its key is not stored, or its columns are mapped to other names.

    Do what the message says: pass the topology to the `Reader`, rebuild the table, or read it with Spark.
    """


class PackageMissing(QueryError):
    """A result was asked for in the form of a package that is not installed.

    Install the package that the message names, or use `.arrow()` or the rows as dicts.
    """
