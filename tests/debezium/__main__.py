"""Record what Debezium makes of SQL, on a PostgreSQL of its own: `make record-debezium`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click

from resources.embedded_registry import API, EmbeddedRegistry
from resources.jars import jars
from resources.java import java
from resources.process import free_port
from tests.debezium.recording import RECORDED, SCRIPTS, script

HERE = Path(__file__).parent
RECORDER = HERE / "Recorder.java"
"""The program that runs a script; it is compiled when it is run."""
PUBLICATION = "recorded"
VERSION = "15"
ANSWER = 30.0  # seconds for an answer of the registry
USER = "postgres"
"""PostgreSQL refuses to run as root: then its server runs as this user, which its packages create."""


class NoPostgres(click.ClickException):
    """This machine has no PostgreSQL of the version that the recordings are of."""


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(list(SCRIPTS)), help="Only these recordings.")
def main(names: tuple[str, ...]) -> None:
    """Record the scripts anew, into tests/debezium/recorded."""
    for name in names or SCRIPTS:
        lines = record(name)
        (RECORDED / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        click.echo(f"{name}: {len(lines)} statements, {sum(map(len, lines)) / 1000:.0f} kB")


def record(name: str) -> list[str]:
    """The lines that the program prints for a script."""
    setup, statements = script(name)
    with _servers() as (scratch, port, registry):
        plan = {
            "jdbc": f"jdbc:postgresql://127.0.0.1:{port}/postgres?user={USER}&preferQueryMode=simple",
            "publication": PUBLICATION,
            "registry": registry.replace(API, "/apis/registry/v2"),  # the converter speaks Apicurio's own API
            "converter": SCRIPTS[name].converter,
            "connectors": {
                connector: {
                    "config": _config(connector, port, config),
                    "flattened": SCRIPTS[name].flattened.get(connector),
                    "avro": connector in SCRIPTS[name].avro,
                }
                for connector, config in SCRIPTS[name].connectors.items()
            },
            "setup": setup,
            "statements": [
                {"name": each.name, "sql": each.sql, **dict.fromkeys(each.flags, True)} for each in statements
            ],
            "tables": SCRIPTS[name].tables,
        }
        written = scratch / "plan.json"
        written.write_text(json.dumps(plan))
        path = os.pathsep.join(map(str, jars("debezium")))
        options = [
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-Duser.timezone=UTC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
        ]
        command: list[str | Path] = [java(), *options, "-cp", path, RECORDER, written]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if printed.returncode != 0:
            raise click.ClickException(f"{name} was not recorded: what the program printed above says why")
        return [*printed.stdout.splitlines(), json.dumps({"registry": _registered(registry)})]


def _registered(registry: str) -> list[dict[str, object]]:
    """Every version of every subject of a registry: subject, version, id and schema."""
    found = []
    for subject in _asked(f"{registry}/subjects"):
        for version in _asked(f"{registry}/subjects/{subject}/versions"):
            answer = _asked(f"{registry}/subjects/{subject}/versions/{version}")
            found.append({name: answer[name] for name in ("subject", "version", "id", "schema")})
    return sorted(found, key=lambda one: (one["id"], one["subject"]))


def _asked(url: str) -> Any:
    with urlopen(url, timeout=ANSWER) as answer:
        return json.load(answer)


def _config(connector: str, port: int, config: Mapping[str, str]) -> dict[str, str]:
    return {
        "name": connector,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        "custom.metric.tags": f"connector={connector}",  # or each waits a minute for the names of the other's metrics
        "poll.interval.ms": "10",  # by default, every statement waits for half a second
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": USER,
        "database.password": USER,  # required, and not asked for
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "slot.name": connector,
        "publication.name": PUBLICATION,
        **config,
    }


@contextmanager
def _servers() -> Iterator[tuple[Path, int, str]]:
    """A folder, the port of a PostgreSQL in it, and the URL of a registry in it; both are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="record-debezium-") as folder:
        scratch = Path(folder)
        registry = EmbeddedRegistry(scratch)
        with _postgres(scratch) as port:
            try:
                yield scratch, port, registry.start()
            finally:
                registry.stop()


@contextmanager
def _postgres(scratch: Path) -> Iterator[int]:
    """A PostgreSQL in a folder of its own, and its port; it is stopped at the end."""
    binaries = Path("/usr/lib/postgresql", VERSION, "bin")
    if not (binaries / "initdb").exists():
        raise NoPostgres(f"no PostgreSQL {VERSION} in {binaries}: sudo apt-get install postgresql-{VERSION}")
    user = USER if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    data, port = scratch / "data", free_port()
    data.mkdir()
    if user is not None:
        scratch.chmod(0o711)
        shutil.chown(data, USER)

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, stdout=sys.stderr, cwd="/", user=user)

    run(binaries / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    settings = {
        "port": str(port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "wal_level": "logical",
        "timezone": "UTC",
        "fsync": "off",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
    }
    with (data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    control: list[str | Path] = [binaries / "pg_ctl", "-D", data, "-l", data / "log", "-w"]
    run(*control, "start")
    try:
        yield port
    finally:
        run(*control, "-m", "immediate", "stop")


main()
