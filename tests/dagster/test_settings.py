"""Where the lake, Kafka and the engine are: from environment variables."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dagster_project.settings import Settings, SettingsError
from resources import engine
from resources.embedded_kafka import EmbeddedKafka
from resources.kafka import Kafka
from resources.process import ServerFailed, free_port


def test_without_settings_the_lake_has_servers_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    tidetable = Settings.from_environment({}).tidetable()
    assert tidetable.lakehouse.table("shop", "orders") == f"{tmp_path}/.lake/shop/orders"
    assert tidetable.kafka == EmbeddedKafka(tmp_path / ".lake")
    assert tidetable.engine.remote is None
    assert not any(tmp_path.iterdir())


def test_every_variable_is_heard() -> None:
    environment = {
        "TIDETABLE_LAKE": "s3://bucket/lake",
        "TIDETABLE_KAFKA": "one:9092,two:9092",
        "SPARK_REMOTE": "sc://engine:15002",
    }
    tidetable = Settings.from_environment(environment).tidetable()
    assert tidetable.lakehouse.table("shop", "orders") == "s3://bucket/lake/shop/orders"
    assert tidetable.kafka == Kafka({"bootstrap.servers": "one:9092,two:9092"})
    assert tidetable.engine.remote == "sc://engine:15002"
    assert Settings.from_environment({"TIDETABLE_ENGINE_MEMORY": "9g"}).tidetable().engine.memory == "9g"


def test_kafka_may_be_a_file_of_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# secure\nbootstrap.servers = one:9093\n\nsasl.password=a=b\n")
    assert Settings(kafka=str(path)).tidetable().kafka == Kafka(
        {"bootstrap.servers": "one:9093", "sasl.password": "a=b"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sasl.username=me", "has no bootstrap.servers"),
        ("bootstrap.servers=a\nwhat", "line 2: write name=value"),
        ("bootstrap.servers=a\nsasl.mechanizm=PLAIN", 'No such configuration property: "sasl.mechanizm"'),
    ],
)
def test_a_broken_file_of_properties_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"client.properties.*{message}"):
        Settings(kafka=str(path)).tidetable()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(kafka="./missing.properties"), "there is no such file"),
        (Settings(lake="s3://bucket", spark_remote="sc://engine:15002"), "set TIDETABLE_KAFKA"),
        (Settings(lake="s3://bucket", kafka="one:9092"), "set SPARK_REMOTE"),
        (
            Settings(lake="s3n://bucket", kafka="one:9092", spark_remote="sc://engine"),
            "s3n:// is not a scheme .* s3a://",
        ),
        (Settings(lake="/data/50%20off"), "read % in a path differently"),
        (Settings(spark_remote="spark://engine:7077"), "SPARK_REMOTE is not a Spark Connect URL: write sc://host:port"),
        (Settings(spark_remote="sc://engine:port/;token=x"), "SPARK_REMOTE is not a Spark Connect URL"),
    ],
)
def test_what_cannot_be_meant_is_said(settings: Settings, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings.tidetable()


def test_a_remote_engine_where_nobody_listens_is_named_at_once_and_its_token_never() -> None:
    """Spark's own client would go on for minutes, and its errors hold the URL."""
    settings = Settings(spark_remote=f"sc://127.0.0.1:{free_port()}/;token=hidden")
    with pytest.raises(ServerFailed, match=r"no engine answers at sc://127.0.0.1:\d+ \(SPARK_REMOTE\)") as failed:
        settings.tidetable().engine.session()
    assert "hidden" not in f"{failed.value}{settings}{settings.tidetable().engine}"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", "does not answer as Spark Connect"),
        (";use_ssl=true;token=hidden", "does not answer as Spark Connect"),
        (";token=hidden=", "has parameters that Spark Connect cannot parse"),
        (";hidden", "has parameters that Spark Connect cannot parse"),
    ],
)
def test_what_listens_and_is_no_engine_is_named_soon_and_no_token(
    monkeypatch: pytest.MonkeyPatch, parameters: str, said: str
) -> None:
    monkeypatch.setattr(engine, "CONNECTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        remote = f"sc://127.0.0.1:{listening.getsockname()[1]}/{parameters}"
        with pytest.raises(ServerFailed, match=said) as failed:
            Settings(spark_remote=remote).tidetable().engine.session()
    assert "hidden" not in str(failed.value)
