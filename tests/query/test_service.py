"""The read service answers what a reader does, refuses by name, and says how to go on where it cuts an answer."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from dagster_project import render
from dagster_project.cli import main
from dagster_project.service import STATUS, Limits
from spark.query.errors import PackageMissing, QueryError
from tests.docs.pages import DOCS
from tests.query.world import BASE, MINUTE, PEOPLE, World
from tests.support import lake
from tests.support.lake import Record, send
from tests.support.service import TOKEN, Client, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resources.kafka import Kafka
    from spark.engine.ports import Lakehouse, Ports
    from tests.query.world import Clicks
    from tests.support.service import Query

pytestmark = pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")  # Great Expectations' imports

READERS = 50


def environment(world: World, **more: str) -> dict[str, str]:
    return {**os.environ, "TIDETABLE_LAKE": world.ports.lakehouse.table("", "").rstrip("/"), **more}


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[Client]:
    """The command itself, in a process of its own; nothing that it prints has the token."""
    command = [sys.executable, "-m", "tidetable", "serve", "--port", "0"]
    started = subprocess.Popen(
        command, env=environment(world, TIDETABLE_SERVE_TOKEN=TOKEN), stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert started.stderr is not None
    line = started.stderr.readline().decode()
    served = re.search(r"serves .* at http://127\.0\.0\.1:(\d+); ", line)
    assert served, line + started.stderr.read().decode()
    yield Client(int(served.group(1)))
    started.send_signal(signal.SIGINT)
    out, errors = started.communicate(timeout=30)
    assert (started.returncode, out) == (0, b"")
    assert errors.decode().strip() == "stopped", "an error was logged"
    assert TOKEN not in line


def json_of(value: object) -> Any:
    """What `--json` prints."""
    return render.to_json(value)


def test_every_query_has_the_answer_of_the_reader(client: Client, world: World, clicks: Clicks) -> None:
    reader = world.reader
    people, cities = reader.table(world.table), reader.table(f"{world.topology.name}.cities")
    path, by_city = f"/tables/{world.table}", f"/tables/{cities.name}"
    at = {"table": world.table, "version": people.version, "cut": json_of(people.cut)}
    number = min(world.people)

    assert set(client.get("/tables")["tables"]) >= {people.name, cities.name}
    assert client.get(path) == {
        **at,
        "key": ["id"],
        "columns": {"id": "bigint", "name": "string", "city": "string"},
    }
    assert client.get(f"{path}/get", {"key": number}) == {**at, "row": world.people[number]}
    assert client.get(f"{path}/get", {"key": 1000})["row"] is None
    assert client.get(f"{path}/get", {"key": number, "column": ["city"]})["row"] == {"city": people.get(number)["city"]}  # type: ignore[index]
    assert client.get(f"{path}/get", {"key": number, "metadata": "true"})["row"] == json_of(
        people.get(number, metadata=True)
    )
    rows = json_of(list(people.all()))
    assert client.get(f"{path}/all") == {**at, "rows": rows, "next": None}
    assert client.get(f"{path}/all", {"reverse": "true"})["rows"] == rows[::-1]
    assert client.get(f"{path}/range", {"low": 10, "high": 20})["rows"] == json_of(list(people.range(10, 20)))
    assert client.get(f"{path}/range", {"low": -1})["rows"] == rows
    many = {"keys": [5, "3", [99], {"id": 3}]}
    assert client.get(f"{path}/get_many", body=many)["rows"] == json_of(list(people.get_many([3, 5])))
    assert client.get(f"{path}/count") == {**at, "count": len(world.people)}
    assert client.get(f"{by_city}/prefix", {"start": "Bo"})["rows"] == list(cities.prefix("Bo"))
    assert client.get(f"{by_city}/get", {"key": "Köln"})["row"] == cities.get("Köln")
    history = people.history(number)
    assert client.get(f"{path}/history", {"key": number}) == {**at, **json_of(history), "next": None}

    first = next(iter(world.by_version))
    then = people.as_of_version(first)
    for version in (
        {"as_of_version": first},
        {"as_of_timestamp": next(change.at for change in people.history(min(world.by_version[first])))},
        {"as_of_cut": json.dumps(then.cut)},
    ):
        answer = client.get(f"{path}/all", version)
        assert (answer["version"], answer["rows"]) == (first, json_of(list(then.all())))
        assert client.get(f"{path}/count", version)["count"] == then.count()

    snapshot = client.get("/snapshot", {"table": [people.name, cities.name]})
    assert snapshot["cut"] == json_of(people.cut)
    assert snapshot["tables"] == {people.name: people.version, cities.name: cities.version}

    windows = reader.table(f"{clicks.topology.name}.tumbling")
    sittings = reader.table(f"{clicks.topology.name}.sittings")
    since, until = (f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime((BASE + m * MINUTE) / 1000))}" for m in (1, 12))
    of_one = {"key": ["a", "x"]}
    for query, table, find in (("windows", windows, windows.windows), ("sessions", sittings, sittings.sessions)):
        assert client.get(f"/tables/{table.name}/{query}")["rows"] == json_of(list(find()))
        assert client.get(f"/tables/{table.name}/{query}", of_one)["rows"] == json_of(list(find(("a", "x"))))
        between = client.get(f"/tables/{table.name}/{query}", {**of_one, "since": since, "until": until})["rows"]
        assert 0 < len(between) < len(find(("a", "x")))
    totals = reader.table(f"{clicks.topology.name}.totals")
    assert client.get(f"/tables/{totals.name}/get", of_one)["row"] == totals.get(("a", "x"))
    assert client.get(f"/tables/{totals.name}/range", {"low": ["a", "y"], "high": "b"})["rows"] == list(
        totals.range(("a", "y"), ("b",))
    )
    composite = {"keys": [["a", "x"], {"user": "y", "page": "a"}]}
    assert client.get(f"/tables/{totals.name}/get_many", body=composite)["rows"] == list(totals.prefix("a"))


def test_an_answer_that_is_cut_says_where_it_goes_on(world: World, clicks: Clicks) -> None:
    people = world.reader.table(world.table)
    rows, path = json_of(list(people.all())), f"/tables/{world.table}"
    windows = world.reader.table(f"{clicks.topology.name}.tumbling")
    with serving(world.ports.lakehouse, Limits(rows=7, bytes=10_000, seconds=30)) as client:
        pages = -(-len(rows) // 7)
        assert client.all(f"{path}/all", "rows") == (rows, pages)
        assert client.all(f"{path}/all", "rows", {"reverse": "true", "limit": 100}) == (rows[::-1], pages)
        assert client.all(f"{path}/all", "rows", {"limit": len(rows) // 2})[0] == rows
        assert client.all(f"{path}/range", "rows", {"low": 10, "column": "city"}) == (
            [{"city": row["city"]} for row in rows if row["id"] >= 10],
            -(-len([row for row in rows if row["id"] >= 10]) // 7),
        )
        assert client.all(f"{path}/get_many", "rows", body={"keys": list(range(PEOPLE))}) == (rows, pages)
        found, _ = client.all(f"/tables/{windows.name}/windows", "rows", {"limit": 2})
        assert found == json_of(list(windows.windows()))
        first = next(iter(world.by_version))
        then = [world.by_version[first][number] for number in sorted(world.by_version[first])]
        assert client.all(f"{path}/all", "rows", {"as_of_version": first, "limit": 5})[0] == then
    with serving(world.ports.lakehouse, Limits(rows=10_000, bytes=200, seconds=30)) as client:
        found, pages = client.all(f"{path}/all", "rows")
        assert found == rows
        assert pages >= len(json.dumps(rows)) // 200
        number = max(range(PEOPLE), key=lambda one: len(people.history(one)))
        changes, pages = client.all(f"{path}/history", "changes", {"key": number})
        assert changes == json_of(list(people.history(number)))
        assert pages > 1
        assert client.send(f"{path}/get_many", body={"keys": list(range(1_000))})[0] == 413
    with serving(world.ports.lakehouse, Limits(rows=10, bytes=1_000, seconds=1e-9)) as client:
        status, answer = client.send(f"{path}/all")
        assert (status, answer["name"]) == (504, "QueryTimeout")
        assert "Ask for fewer rows" in answer["message"]


REFUSED: list[tuple[str, Query, int, str, str]] = [
    ("/tables/nothing.here/all", {}, 404, "NameUnknown", "there is no table 'nothing.here'"),
    ("{path}/get", {"key": "1", "column": "citi"}, 404, "NameUnknown", "did you mean city?"),
    ("{path}/get", {"key": "x"}, 400, "KeyRefused", "'x' is no bigint"),
    ("{path}/get", {"key": ["1", "2"]}, 400, "KeyRefused", "Its key is (id bigint)"),
    ("{path}/get", {}, 400, "ParameterRefused", "key: Field required"),
    ("{path}/all", {"limt": 5}, 400, "ParameterRefused", "limt: Extra inputs are not permitted"),
    ("{path}/all", {"limit": 0}, 400, "ParameterRefused", "limit: Input should be greater than or equal to 1"),
    ("{path}/windows", {}, 400, "QueryUnsupported", "has no windows"),
    ("{path}/get_as_of", {"key": 1, "when": "2026-01-01"}, 400, "QueryUnsupported", "is not a versioned table"),
    ("{path}/count", {"as_of_version": 1000}, 410, "VersionGone", "has no version 1000"),
    ("{path}/count", {"as_of_version": 0}, 503, "NotWhole", "its first step committed version"),
    ("{path}/count", {"as_of_timestamp": "noon"}, 400, "QueryError", "write a time as in"),
    ("{path}/count", {"as_of_cut": "noon"}, 400, "QueryError", "noon is no cut: write it as answers have it"),
    ("{path}/count", {"as_of_version": 1, "as_of_timestamp": "2026-01-01"}, 400, "QueryError", "pass one"),
    ("{path}/count", {"at_least": "{topic}"}, 400, "QueryError", "write TOPIC:PARTITION:OFFSET"),
    ("{path}/count", {"at_least": "{topic}:0:9999", "timeout": 0}, 504, "NotCovered", "does not cover {topic}/0"),
    ("{path}/count", {"at_least": '{"{topic}":{"0":9999}}', "timeout": 0}, 504, "NotCovered", "does not cover"),
    ("/snapshot", {"table": ["nothing.here"]}, 404, "NameUnknown", "there is no table 'nothing.here'"),
    ("/snapshot", {"table": "{table}", "at_least": "other:0:1", "timeout": 0}, 504, "NotCovered", "is computed from"),
    ("/nothing", {}, 404, "PathUnknown", "/docs has every query"),
]


@pytest.mark.parametrize(("path", "query", "status", "name", "message"), REFUSED)
def test_an_error_has_a_status_a_name_and_a_message(
    client: Client, world: World, path: str, query: Query, status: int, name: str, message: str
) -> None:
    def filled(text: object) -> object:
        if not isinstance(text, str):
            return [filled(one) for one in text] if isinstance(text, list) else text
        for word, value in (("path", f"/tables/{quote(world.table)}"), ("table", world.table), ("topic", world.topic)):
            text = text.replace(f"{{{word}}}", value)
        return text

    got, answer = client.send(str(filled(path)), {one: filled(value) for one, value in query.items()})
    assert (got, answer["name"]) == (status, name), answer
    assert str(filled(message)) in answer["message"]
    assert set(answer) == {"name", "message"}


def test_the_page_has_the_status_of_every_error() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", (DOCS / "queries.md").read_text(), re.MULTILINE)
    for kind in (*STATUS, *QueryError.__subclasses__()):
        if kind is not PackageMissing:  # no query of the service needs a package
            status = next(one for above, one in STATUS.items() if issubclass(kind, above))
            assert kind.__name__ in next(names for code, names in rows if int(code) == status)


def test_a_broken_log_a_broken_body_and_a_wrong_method_have_a_status(world: World, lakehouse: Lakehouse) -> None:
    broken = f"{lakehouse.table('', '').rstrip('/')}/broken-{world.topic}/t/_delta_log"
    os.makedirs(broken)
    with open(f"{broken}/00000000000000000000.json", "w") as log:
        log.write("{no json")
    with serving(lakehouse) as client:
        status, answer = client.send(f"/tables/broken-{world.topic}.t/all")
        assert (status, answer["name"]) == (500, "LogBroken")
        status, answer = client.send(f"/tables/{world.table}/get_many", body=b"{no json")
        assert (status, answer["name"]) == (400, "ParameterRefused")
        status, answer = client.send(f"/tables/{world.table}/all", body={})
        assert (status, answer["name"]) == (405, "MethodRefused")


def test_nothing_is_read_without_the_token(client: Client, world: World) -> None:
    for token in (None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", "ä"):
        stranger = Client(client.port, token)
        for path in ("/tables", f"/tables/{world.table}", f"/tables/{world.table}/all", "/snapshot", "/nothing"):
            status, answer = stranger.send(path)
            assert (status, answer["name"]) == (401, "Unauthorized")
            assert TOKEN not in answer["message"]
        status, answer = stranger.send(f"/tables/{world.table}/get_many", body=b"x" * 100_000)
        assert status == 401
        assert stranger.get("/health") == {"status": "ok"}
        assert b"swagger" in stranger.get("/docs")
        described = stranger.get("/openapi.json")
        assert "/tables/{name}/get_as_of" in described["paths"]
        assert world.table not in json.dumps(described)
        assert TOKEN not in json.dumps(described)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "the read service needs a token: set TIDETABLE_SERVE_TOKEN"),
        ("planted", "TIDETABLE_SERVE_TOKEN is no token: it has at least 16 characters"),
        ("planted planted planted é", "TIDETABLE_SERVE_TOKEN is no token"),
    ],
)
def test_the_command_asks_for_a_token_that_is_one(token: str, message: str) -> None:
    ran = CliRunner(env={"TIDETABLE_SERVE_TOKEN": token}).invoke(main, ["serve"])
    assert ran.exit_code == 1
    assert message in ran.output
    assert "secrets.token_urlsafe" in ran.output
    assert "planted" not in ran.output


def test_the_command_says_what_is_not_installed_and_what_uses_its_port(world: World) -> None:
    without = "import sys; sys.modules['fastapi'] = None; from tidetable.__main__ import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", without, "serve"],
        env=environment(world, TIDETABLE_SERVE_TOKEN=TOKEN),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "`tidetable serve` needs fastapi: pip install 'tidetable[serve]'" in ran.stderr
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        refused = CliRunner(env={"TIDETABLE_SERVE_TOKEN": TOKEN}).invoke(main, ["serve", "--port", port])
    assert refused.exit_code == 1
    assert f"cannot listen at 127.0.0.1, port {port}: " in refused.output


def test_many_clients_beside_a_writer_get_whole_versions_and_their_own_writes(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    moving = World.made(ports, kafka, topic, seed=5)
    moving.wave()
    path, done = f"/tables/{moving.table}", Event()
    seen: dict[int, list[Any]] = {}

    def read(number: int) -> int:
        rng, reads = random.Random(number), 0
        while not done.is_set():
            answer = served.get(f"{path}/all", {"limit": 40 if number % 2 else 1_000})
            version, rows = answer["version"], answer["rows"]
            while answer["next"] is not None:
                answer = served.get(answer["next"])
                assert answer["version"] == version
                rows = rows + answer["rows"]
            assert seen.setdefault(version, rows) == rows
            one = served.get(f"{path}/get", {"key": number})
            if one["version"] == version:
                assert one["row"] == next((row for row in rows if row["id"] == number), None)
            reads += 1
            time.sleep(rng.random())
        return reads

    with serving(ports.lakehouse) as served, ThreadPoolExecutor(READERS + 1) as pool:
        readers = [pool.submit(read, number) for number in range(READERS)]
        try:
            send(kafka, moving.topic, Record(1, {"name": "own", "city": "Bonn"}))
            covering = {"key": 1, "at_least": f"{moving.topic}:0:{moving.sent}", "timeout": 30}
            own = pool.submit(served.get, f"{path}/get", covering)
            lake.land_all(ports, moving.topology)
            after = lake.step_all(ports, moving.topology, moving.topic)[moving.topic].after
            assert own.result()["row"] == {"id": 1, "name": "own", "city": "Bonn"}
            assert after is not None
            moving.by_version[after.version] = moving.people | {1: {"id": 1, "name": "own", "city": "Bonn"}}
            time.sleep(1)
        finally:
            done.set()
        assert min(one.result() for one in readers) > 0
    assert seen == {version: [rows[number] for number in sorted(rows)] for version, rows in moving.by_version.items()}
