"""Passwords, keys and tokens are in nothing that is printed or written: no verb says one, no log, no file of a lake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_project.cli import main
from resources.kafka import Kafka
from resources.process import free_port
from tests.dagster import shop
from tests.support.secured import locked

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

pytestmark = pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")  # Great Expectations' imports

PLANTED = "planted"
"""In every secret of these tests."""

VERBS: dict[str, tuple[str, ...]] = {
    "init": ("Makefile",),  # a file, which is refused
    "up": (),
    "topics create": ("shop",),
    "land": ("shop",),
    "step": ("shop",),
    "run": ("shop",),
    "publish": ("shop",),
    "status": (),
    "describe": ("shop",),
    "audit": ("shop.orders",),
    "check": ("shop.orders",),
    "rebuild": ("shop.orders",),
    "restore": ("shop.orders", "--version", "1"),
    "compact": ("shop.orders",),
    "get": ("shop.orders", "1"),
    "range": ("shop.orders",),
    "prefix": ("shop.orders", "1"),
    "scan": ("shop.orders",),
    "history": ("shop.orders", "1"),
    "serve": (),  # which has no token here, and ends: tests/query/test_service.py has one that has
    "gaps": ("shop",),
    "late": ("shop.orders",),
    "quarantine list": ("shop.orders",),
    "quarantine replay": ("shop.orders",),
    "quarantine show": ("shop.orders", "--partition", "0", "--offset", "0"),
    "quarantine drop": ("shop.orders", "--error", "none", "--reason", "a test"),
    "schema show": ("orders",),
    "schema declare": ("orders",),
    "down": (),
}


def verbs(group: click.Group, before: str = "") -> set[str]:
    """The command's verbs, those of its groups too."""
    found = set()
    for name, command in group.commands.items():
        nested = getattr(command, "commands", None)
        found |= {f"{before}{name}"} if nested is None else verbs(command, f"{name} ")  # type: ignore[arg-type]
    return found


def test_every_verb_is_asked() -> None:
    assert set(VERBS) == verbs(main)


FORMS = ("", "--json")
"""The options for text, which is what a verb says without one, and for JSON."""


def outputs(
    environment: dict[str, str], capfd: pytest.CaptureFixture[str], verbs: Iterable[str] = VERBS
) -> dict[str, str]:
    """What verbs say, in each of the forms."""
    told = {}
    for verb in verbs:
        for form in FORMS:
            command = (*verb.split(), *VERBS[verb], *form.split())
            ran = CliRunner(env=environment).invoke(main, command)
            beside = capfd.readouterr()
            told[" ".join(command)] = f"{ran.output}{ran.stderr}{beside.out}{beside.err}{ran.exception!r}"
    return told


def properties(to: Path, values: dict[str, str]) -> Path:
    """A file of librdkafka's properties."""
    to.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return to


def holding(folder: Path, secrets: list[bytes]) -> dict[Path, list[bytes]]:
    """The files below a folder that have one of the secrets."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {path: [secret for secret in secrets if secret in path.read_bytes()] for path in files}
    return {path: has for path, has in found.items() if has}


@pytest.mark.parametrize(
    ("way", "verbs"),
    [
        pytest.param("PLAIN", ("run", "status"), id="PLAIN"),
        pytest.param("TLS", tuple(VERBS), id="TLS", marks=pytest.mark.thorough),
    ],
)
def test_no_output_has_a_secret_of_kafka(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], way: str, verbs: tuple[str, ...]
) -> None:
    lake, events, home = (tmp_path / name for name in ("lake", "events", "home"))
    for folder in (events, home):
        folder.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\nspark.eventLog.compress false\n"
    )
    with locked(tmp_path / "broker") as ways:
        environment = {
            "TIDETABLE_LAKE": str(lake),
            "TIDETABLE_KAFKA": str(properties(tmp_path / "properties", ways[way])),
            "TIDETABLE_ENGINE_MEMORY": "1g",
            "SPARK_CONF_DIR": str(tmp_path),
            "DAGSTER_HOME": str(home),
        }
        kafka = Kafka(ways[way])
        shop.open_topics(kafka)
        shop.stock(kafka)
        shop.order(kafka, 1)
        shop.put(kafka, "clicks", 1, b"{no json")
        told = outputs(environment, capfd, verbs)
        assert json.loads(told["run shop --json"].removesuffix("None"))["failed"] == {}, told
        command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "dagster_project.definitions"]
        ran = subprocess.run(
            [*command, "-j", "shop_tick"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        CliRunner(env=environment).invoke(main, ["down"])
    assert ran.returncode == 0, ran.stderr
    told["dagster"] = ran.stdout + ran.stderr
    secrets = [PLANTED.encode(), *_lines(ways[way])]
    assert {verb for verb, text in told.items() if any(one.decode() in text for one in secrets)} == set()
    for folder in (lake, events, home):
        assert holding(folder, secrets) == {}
    assert holding(events, [b"KafkaRelation"]), "reads of Kafka are in the event log"


def _lines(opened: dict[str, str]) -> list[bytes]:
    """The lines of a private key, without its first and its last."""
    path = opened.get("ssl.key.location")
    return [] if path is None else Path(path).read_bytes().splitlines()[1:-1]


@pytest.mark.thorough
def test_no_output_has_a_secret_that_does_not_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "bootstrap.servers": f"127.0.0.1:{free_port()}",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "planted-password",
    }
    key = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.key.password": "planted-2"}
    key["ssl.key.pem"] = "-----BEGIN PRIVATE KEY-----planted-key-----END PRIVATE KEY-----"
    for environment in (
        {"TIDETABLE_KAFKA": str(properties(tmp_path / "wrong", wrong))},
        {"TIDETABLE_KAFKA": str(properties(tmp_path / "key", key))},
        {"SPARK_REMOTE": f"sc://127.0.0.1:{free_port()}/;token=planted-token"},
        {"SPARK_REMOTE": "sc:/127.0.0.1;token=planted-token"},
    ):
        told = outputs({"TIDETABLE_LAKE": str(tmp_path / "lake"), **environment}, capfd)
        CliRunner(env={"TIDETABLE_LAKE": str(tmp_path / "lake")}).invoke(main, ["down"])
        assert {verb for verb, text in told.items() if PLANTED in text} == set()
        assert not [verb for verb, text in told.items() if "Traceback" in text]
