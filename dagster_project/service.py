"""The read service: the queries of `tidetable.Reader` over HTTP, for programs in any language. It changes nothing.

A path is `/tables/{table}/{query}`, with the names that `Reader` has. Keys are text, as the command takes them; rows
are JSON, as its `--json` prints them. Every answer names the version and the cut that it was read at. An answer that
was cut at a limit has the address of the rest, `next`, which reads the same version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import anyio
from fastapi import Body, FastAPI, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from dagster_project import render
from spark.engine.errors import UNREADABLE, NoCommonCut
from spark.query import errors
from spark.query.deadline import within
from spark.query.keys import named, time_of
from spark.query.positions import offsets_from
from spark.query.reader import Reader
from spark.query.table_reader import TIMEOUT

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from spark.engine.ports import Lakehouse
    from spark.query.history import History
    from spark.query.positions import Offsets
    from spark.query.rows import Row, Rows
    from spark.query.table_reader import TableReader

QUERIES, WAITING = 16, 256
"""Requests that read at once, and those that wait for `at_least`; others queue. A wait holds up no other request."""

OPEN = ("/health", "/docs", "/openapi.json")
"""Paths that need no token: they say nothing of the lake."""

STATUS: dict[type[Exception], int] = {
    errors.NameUnknown: 404,
    errors.VersionGone: 410,
    errors.LayoutUnknown: 501,
    errors.NotWhole: 503,
    NoCommonCut: 503,
    errors.NotCovered: 504,
    errors.QueryTimeout: 504,
    errors.QueryError: 400,
    **dict.fromkeys(UNREADABLE, 500),
}
"""The status of each error; the first class that fits. Their messages say what to do."""

CUT = TypeAdapter(dict[str, dict[int, int]])
AS_OF = ("as_of_version", "as_of_timestamp", "as_of_cut")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What an answer may have: rows, bytes, and seconds to make it. A request has as many bytes, at most."""

    rows: int
    bytes: int
    seconds: float


class Error(BaseModel):
    """Why a request was refused: the name of the error in Python, and what to do."""

    name: str
    message: str


class At(BaseModel):
    """What an answer was read at. `cut` is the next offset by topic and partition."""

    table: str
    version: int
    cut: dict[str, dict[int, int]]


class RowAnswer(At):
    """A row by column; null if there is none."""

    row: dict[str, Any] | None


class RowsAnswer(At):
    """Rows in the order of the key. `next` is the address of the rows after them; null if there are no more."""

    rows: list[dict[str, Any]]
    next: str | None


class HistoryAnswer(At):
    """What each commit made of a row, oldest first. `since` is the oldest version whose change is known."""

    changes: list[dict[str, Any]]
    since: int
    next: str | None


class CountAnswer(At):
    """The number of rows."""

    count: int


class TableAnswer(At):
    """A table: its key columns, and all columns with their types."""

    key: list[str]
    columns: dict[str, str]


class SnapshotAnswer(BaseModel):
    """Tables at one cut: read each with its `as_of_version`."""

    cut: dict[str, dict[int, int]]
    tables: dict[str, int]


class TablesAnswer(BaseModel):
    """The names of the tables; none if the lake is an object store."""

    tables: list[str]


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AtLeast(_Parameters):
    """What the table must cover."""

    at_least: list[str] = Field(
        default=[],
        description="Wait until the table has this record: TOPIC:PARTITION:OFFSET; may be repeated. Or a cut, as "
        'answers have it: {"orders": {"0": 42}}.',
    )
    timeout: float | None = Field(
        default=None, ge=0, description="Seconds to wait for at_least; at most the time of an answer."
    )


class Version(AtLeast):
    """Which version of a table is read: the newest, if no `as_of` names one."""

    as_of_version: int | None = Field(default=None, ge=0, description="Read this version.")
    as_of_timestamp: str | None = Field(
        default=None, description="Read the newest version committed up to a time in ISO 8601; UTC without an offset."
    )
    as_of_cut: str | None = Field(
        default=None, description='Read the newest version without records beyond a cut: {"orders": {"0": 42}}.'
    )


class Shown(Version):
    """Which columns a row has."""

    column: list[str] = Field(default=[], description="A column to return; all by default; may be repeated.")
    metadata: bool = Field(default=False, description="Also return _timestamp, _topic, _partition and _offset.")


class Keyed(Shown):
    """A key."""

    key: list[str] = Field(min_length=1, description="The key; repeated, once for each key column.")


class AsOf(Version):
    """A key of a versioned table, and an event time."""

    key: list[str] = Field(min_length=1, description="The key; repeated, once for each key column.")
    when: str = Field(description="The event time in ISO 8601; UTC without an offset.")
    metadata: bool = Field(default=False, description="Also return _timestamp, _topic, _partition and _offset.")


class Changes(Keyed):
    """A key, and which of its changes."""

    after: int = Field(default=-1, description="Leave out the changes up to this version.")


class Page(Shown):
    """How many rows, and from where on."""

    limit: int | None = Field(default=None, ge=1, description="Rows of this answer, at most; `next` has the others.")
    after: list[str] = Field(
        default=[], description="Leave out the rows up to this key, in the order of the answer; as key."
    )


class Ordered(Page):
    """Rows in either order."""

    reverse: bool = Field(default=False, description="Greatest keys first.")


class Bounds(Ordered):
    """Rows from one key to another."""

    low: list[str] = Field(default=[], description="The least key; repeated, once for each key column, or the first.")
    high: list[str] = Field(default=[], description="The greatest key, which is included; as low.")


class Start(Ordered):
    """Rows whose key begins with something."""

    start: list[str] = Field(
        min_length=1, description="The beginning of a key of text, or values of the first key columns; repeated."
    )


class Times(Page):
    """Windows of a key between two times."""

    key: list[str] = Field(default=[], description="The grouping columns of the key; repeated. All keys by default.")
    since: str | None = Field(default=None, description="A time in ISO 8601; UTC without an offset.")
    until: str | None = Field(default=None, description="A time in ISO 8601; UTC without an offset.")


class Snapshot(AtLeast):
    """Tables of a snapshot."""

    table: list[str] = Field(min_length=1, description="A table; repeated.")


class Keys(BaseModel):
    """Keys: each is a value, a list in the order of the key columns, or an object by their names."""

    model_config = ConfigDict(extra="forbid")
    keys: list[Any]


Name = Annotated[str, Path(description="The table: TOPOLOGY.TABLE.")]


class Guard:
    """Lets requests pass that have the token, or need none, and whose body has not too many bytes."""

    def __init__(self, app: ASGIApp, token: str, size: int) -> None:
        self._app, self._token, self._size = app, f"Bearer {token}".encode(), size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http" and (refused := self._refused(scope)) is not None:
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        scheme, space, token = given.partition(b" ")
        if scope["path"] not in OPEN and not compare_digest(scheme.title() + space + token.strip(), self._token):
            return _error(401, "Unauthorized", "send the header Authorization: Bearer TOKEN, with the service's token")
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit() or int(length) > self._size:
            return _error(413, "RequestTooLarge", f"a request has at most {self._size:,} bytes, and a Content-Length")
        return None


def service(lakehouse: Lakehouse, token: str, limits: Limits) -> FastAPI:
    """Return the application that answers queries of a lake."""
    app = FastAPI(
        title="Tidetable",
        summary="Reads tables of a lake by key, by range and by time. It changes nothing.",
        description=__doc__.partition("\n\n")[2],
        version="1",
        redoc_url=None,
        dependencies=[Security(HTTPBearer(auto_error=False, description="The token of the setting serve_token."))],
        responses={"default": {"model": Error, "description": "The request was refused."}},
    )
    queries = _Queries(Reader(lakehouse), limits)
    _add_routes(app, queries)
    for kind in STATUS:
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(HTTPException, _without_route)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Guard, token=token, size=limits.bytes)
    return app


def _add_routes(app: FastAPI, queries: _Queries) -> None:
    @app.get("/health")
    async def health() -> dict[Literal["status"], Literal["ok"]]:
        """Say that the service runs. Needs no token."""
        return {"status": "ok"}

    @app.get("/tables")
    async def tables() -> TablesAnswer:
        """List the tables of the lake."""
        return TablesAnswer(tables=list(await queries.run(queries.reader.names, waits=False)))

    @app.get("/snapshot")
    async def snapshot(asked: Annotated[Snapshot, Query()]) -> SnapshotAnswer:
        """Find versions of several tables at one cut."""
        return await queries.run(partial(queries.snapshot, asked), waits=bool(asked.at_least))

    @app.get("/tables/{name}")
    async def table(name: Name, asked: Annotated[Version, Query()]) -> TableAnswer:
        """Describe a table: version, cut, key and columns."""
        return await queries.of(name, asked, _described)

    @app.get("/tables/{name}/get", response_model=RowAnswer)
    async def get(name: Name, asked: Annotated[Keyed, Query()]) -> Response:
        """Return the row of a key."""
        shown = _shown(asked)
        return await queries.of(name, asked, lambda table: _row(table, table.get(table.parsed(asked.key), **shown)))

    @app.post("/tables/{name}/get_many", response_model=RowsAnswer)
    async def get_many(name: Name, asked: Annotated[Page, Query()], body: Annotated[Keys, Body()]) -> Response:
        """Return the rows of some keys; those without a row are left out. Send the same body to `next`."""

        def find(table: TableReader, **more: Any) -> Rows:
            return table.get_many(map(table.key_of_json, body.keys), **more)

        return await queries.page(name, "get_many", asked, find)

    @app.get("/tables/{name}/range", response_model=RowsAnswer)
    async def key_range(name: Name, asked: Annotated[Bounds, Query()]) -> Response:
        """Return the rows from one key to another, both inclusive."""

        def find(table: TableReader, **more: Any) -> Rows:
            low, high = (table.parsed(bound) if bound else None for bound in (asked.low, asked.high))
            return table.range(low, high, reverse=asked.reverse, **more)

        return await queries.page(name, "range", asked, find)

    @app.get("/tables/{name}/prefix", response_model=RowsAnswer)
    async def prefix(name: Name, asked: Annotated[Start, Query()]) -> Response:
        """Return the rows whose key begins with something."""

        def find(table: TableReader, **more: Any) -> Rows:
            start = table.parsed(asked.start)
            return table.prefix(start[0] if len(start) == 1 else start, reverse=asked.reverse, **more)

        return await queries.page(name, "prefix", asked, find)

    @app.get("/tables/{name}/all", response_model=RowsAnswer)
    async def all_rows(name: Name, asked: Annotated[Ordered, Query()]) -> Response:
        """Return all rows."""
        return await queries.page(name, "all", asked, lambda table, **more: table.all(reverse=asked.reverse, **more))

    @app.get("/tables/{name}/windows", response_model=RowsAnswer)
    async def windows(name: Name, asked: Annotated[Times, Query()]) -> Response:
        """Return the windows of a key, or of all keys, that start from one time to another, both inclusive."""
        return await queries.page(
            name, "windows", asked, lambda table, **more: table.windows(*_times(table, asked), **more)
        )

    @app.get("/tables/{name}/sessions", response_model=RowsAnswer)
    async def sessions(name: Name, asked: Annotated[Times, Query()]) -> Response:
        """Return the sessions that end at or after `since` and start at or before `until`."""
        return await queries.page(
            name, "sessions", asked, lambda table, **more: table.sessions(*_times(table, asked), **more)
        )

    @app.get("/tables/{name}/count")
    async def count(name: Name, asked: Annotated[Version, Query()]) -> CountAnswer:
        """Return the number of rows."""
        return await queries.of(name, asked, lambda table: CountAnswer(**_at(table), count=table.count()))

    @app.get("/tables/{name}/history", response_model=HistoryAnswer)
    async def history(name: Name, asked: Annotated[Changes, Query()]) -> Response:
        """Return what each commit made of the row of a key, oldest first."""

        def find(table: TableReader) -> Response:
            return queries.changes(table, asked, table.history(table.parsed(asked.key), **_shown(asked)))

        return await queries.of(name, asked, find)

    @app.get("/tables/{name}/get_as_of", response_model=RowAnswer)
    async def get_as_of(name: Name, asked: Annotated[AsOf, Query()]) -> Response:
        """Return the row of a key of a versioned table as it was valid at an event time."""

        def find(table: TableReader) -> Response:
            return _row(table, table.get_as_of(table.parsed(asked.key), time_of(asked.when), asked.metadata))

        return await queries.of(name, asked, find)


@dataclass(frozen=True)
class _Queries:
    """Runs queries in threads, each with the time that an answer may take."""

    reader: Reader
    limits: Limits
    reading: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(QUERIES))
    waiting: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(WAITING))

    async def run(self, query: Callable[[], T], waits: bool) -> T:
        """Return what a query answers."""

        def timed() -> T:
            with within(self.limits.seconds):
                return query()

        return await anyio.to_thread.run_sync(timed, limiter=self.waiting if waits else self.reading)

    async def of(self, name: str, asked: Version, query: Callable[[TableReader], T]) -> T:
        """Return what a query of a table answers, at the version that was asked for."""
        return await self.run(lambda: query(self._table(name, asked)), waits=bool(asked.at_least))

    async def page(self, name: str, query: str, asked: Page, find: Callable[..., Rows]) -> Response:
        """Return the rows that a query finds, as many as fit into an answer."""
        return await self.of(name, asked, lambda table: self._page(table, query, asked, find))

    def snapshot(self, asked: Snapshot) -> SnapshotAnswer:
        """Return the versions of tables at one cut."""
        found = self.reader.snapshot(asked.table, *self._at_least(asked))
        return SnapshotAnswer(cut=found.cut, tables={name: found[name].version for name in found})

    def changes(self, table: TableReader, asked: Changes, found: History) -> Response:
        """Return changes of a key, as many as fit into an answer."""
        left = [change for change in found if change.version > asked.after]
        texts, has_more = self._fitting(left, self.limits.rows)
        rest = _address(table, "history", asked, str(left[len(texts) - 1].version)) if has_more else None
        return _answer(table, "changes", f"[{','.join(texts)}]", since=found.since, next=rest)

    def _page(self, table: TableReader, query: str, asked: Page, find: Callable[..., Rows]) -> Response:
        limit = min(asked.limit or self.limits.rows, self.limits.rows)
        after = table.parsed(asked.after) if asked.after else None
        shown = _shown(asked)
        hidden = set(table.key) - set(asked.column) if asked.column else set()
        if hidden:  # the last row says where the next answer begins
            shown["columns"] = [*asked.column, *(name for name in table.key if name in hidden)]
        rows = list(find(table, limit=limit + 1, after=after, **shown))
        texts, has_more = self._fitting(
            ({name: value for name, value in row.items() if name not in hidden} for row in rows), limit
        )
        rest = _address(table, query, asked, *table.key_texts(rows[len(texts) - 1])) if has_more else None
        return _answer(table, "rows", f"[{','.join(texts)}]", next=rest)

    def _fitting(self, values: Iterable[object], limit: int) -> tuple[list[str], bool]:
        """Return values as JSON, as many as fit into an answer, and whether there are more. One always fits."""
        texts: list[str] = []
        size = 0
        for value in values:
            text = render.json_text(value)
            size += len(text)
            if texts and (len(texts) == limit or size > self.limits.bytes):
                return texts, True
            texts.append(text)
        return texts, False

    def _table(self, name: str, asked: Version) -> TableReader:
        if sum(given is not None for given in (asked.as_of_version, asked.as_of_timestamp, asked.as_of_cut)) > 1:
            raise errors.QueryError("as_of_version, as_of_timestamp and as_of_cut each name a version: pass one")
        table = self.reader.table(name, *self._at_least(asked))
        if asked.as_of_version is not None:
            return table.as_of_version(asked.as_of_version)
        if asked.as_of_timestamp is not None:
            return table.as_of_timestamp(time_of(asked.as_of_timestamp))
        return table if asked.as_of_cut is None else table.as_of_cut(_cut(asked.as_of_cut))

    def _at_least(self, asked: AtLeast) -> tuple[Offsets | None, float]:
        """Return what a table must cover, and for how many seconds to wait."""
        cuts = [_cut(text) for text in asked.at_least if text.startswith("{")]
        cuts.append(offsets_from(text for text in asked.at_least if not text.startswith("{")))
        wanted: dict[str, dict[int, int]] = {}
        for topic, partition, offset in (
            (t, p, at) for cut in cuts for t, ends in cut.items() for p, at in ends.items()
        ):
            known = wanted.setdefault(topic, {})
            known[partition] = max(known.get(partition, 0), offset)
        seconds = TIMEOUT if asked.timeout is None else asked.timeout
        return wanted or None, min(seconds, self.limits.seconds)


def _cut(text: str) -> dict[str, dict[int, int]]:
    try:
        return CUT.validate_json(text)
    except ValidationError as error:
        raise errors.QueryError(f'{text} is no cut: write it as answers have it, {{"orders": {{"0": 42}}}}') from error


def _shown(asked: Shown) -> dict[str, Any]:
    return {"columns": asked.column or None, "metadata": asked.metadata}


def _times(table: TableReader, asked: Times) -> tuple[object, dt.datetime | None, dt.datetime | None]:
    since, until = (None if text is None else time_of(text) for text in (asked.since, asked.until))
    return table.parsed(asked.key) if asked.key else None, since, until


def _at(table: TableReader) -> dict[str, Any]:
    return {"table": table.name, "version": table.version, "cut": table.cut}


def _described(table: TableReader) -> TableAnswer:
    columns = {column.name: named(column.type) for column in table.schema}
    return TableAnswer(**_at(table), key=list(table.key), columns=columns)


def _row(table: TableReader, row: Row | None) -> Response:
    return _answer(table, "row", render.json_text(row))


def _answer(table: TableReader, name: str, text: str, **more: object) -> Response:
    """Return an answer with a field that is JSON already: every value of a row is written once."""
    fields = {**_at(table), **more}
    return Response(f'{render.json_text(fields)[:-1]},"{name}":{text}}}', media_type="application/json")


def _address(table: TableReader, query: str, asked: Shown, *after: str) -> str:
    """Return the address of the rest of an answer: the same query, of the same version, after a key or a version."""
    given = asked.model_dump(exclude_defaults=True, exclude={*AtLeast.model_fields, *AS_OF, "after"})
    given |= {"as_of_version": table.version, "after": after}
    texts = {name: "true" if value is True else value for name, value in given.items()}
    return f"/tables/{quote(table.name, safe='')}/{query}?{urlencode(texts, doseq=True)}"


def _error(status: int, name: str, message: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"name": name, "message": message}, status, headers)


def _refused(_: Request, error: Exception) -> Response:
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    return _error(status, type(error).__name__, str(error))


def _misread(_: Request, error: Exception) -> Response:
    """Answer a request with unknown parameters, or values of other types. The values are not repeated."""
    assert isinstance(error, RequestValidationError)
    found = (f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors())
    return _error(400, "ParameterRefused", f"{'; '.join(found)}. /docs has the parameters of every query")


def _without_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "PathUnknown", 405: "MethodRefused"}
    name = names.get(error.status_code, "RequestRefused")
    return _error(error.status_code, name, f"{error.detail}: /docs has every query")


def _failed(_: Request, __: Exception) -> Response:
    """Answer a request whose query failed for a reason that no error of ours names; the server logs the traceback."""
    return _error(500, "ServiceFailed", "the service failed; its log has the reason")
