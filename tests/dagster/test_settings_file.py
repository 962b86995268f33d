"""`tidetable.toml` and `[tool.tidetable]`: where they are found, what wins, and what is refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dagster_project.settings import Settings, SettingsError
from resources.embedded_kafka import EmbeddedKafka
from resources.kafka import Kafka


def read(folder: Path, **environment: str) -> Settings:
    return Settings.from_environment(environment, folder)


def test_a_file_says_what_variables_say_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("bootstrap.servers=one:9092")
    (tmp_path / "tidetable.toml").write_text(
        'lake = "data/lake"\nkafka = "client.properties"\nengine_memory = "6g"\n'
        'topologies = ["tables", "acme.more"]\nexpectations = "suites"\ncadence = "0 * * * *"\n'
    )
    (tmp_path / "tables").mkdir()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    settings = read(below)
    assert settings.lake == str(tmp_path / "data" / "lake")
    assert settings.tidetable().kafka == Kafka({"bootstrap.servers": "one:9092"})
    assert settings.tidetable().engine.memory == "6g"
    assert settings.topologies == (str(tmp_path / "tables"), "acme.more")
    assert settings.expectations == str(tmp_path / "suites")
    assert settings.cadence == "0 * * * *"
    assert read(tmp_path) == settings


def test_without_a_key_lake_and_topologies_are_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").touch()
    settings = read(tmp_path)
    assert settings.tidetable().kafka == EmbeddedKafka(tmp_path / ".lake")
    assert settings.topologies == (str(tmp_path / "topologies"),)


def test_the_nearest_file_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").write_text('engine_memory = "6g"')
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert read(inner).engine_memory == "6g"
    (inner / "pyproject.toml").write_text('[tool.tidetable]\nkafka = "one:9092"\n')
    assert read(inner).kafka == "one:9092"
    assert read(inner).engine_memory is None


def test_the_environment_wins_and_an_empty_variable_is_none(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").write_text('lake = "lake"\nspark_remote = "sc://written:1"\nkafka = "written:1"')
    settings = read(tmp_path, TIDETABLE_LAKE="s3://b", SPARK_REMOTE="sc://variable:2", TIDETABLE_KAFKA="")
    assert (settings.lake, settings.spark_remote, settings.kafka) == ("s3://b", "sc://variable:2", "written:1")
    several = os.pathsep.join(["one", "acme.two"])
    assert read(tmp_path, TIDETABLE_TOPOLOGIES=several).topologies == ("one", "acme.two")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lakes = "x"', "tidetable.toml: unknown setting 'lakes'; did you mean lake?; known settings: lake, kafka,"),
        ("cadence = 300", "tidetable.toml: cadence: Input should be a valid string"),
        ("lake = 5", "tidetable.toml: lake: Input should be a valid string"),
        ("topologies = [1]", "tidetable.toml: topologies: Input should be a valid string"),
        ("serve_rows = 0", "tidetable.toml: serve_rows: Input should be greater than or equal to 1"),
        ('serve_seconds = "inf"', "tidetable.toml: serve_seconds: Input should be a finite number"),
        ("lake = ", "tidetable.toml is not TOML: Invalid value (at end of document)"),
        (
            'spark_remote = "env:NOWHERE"',
            "spark_remote refers to env:NOWHERE, but the variable NOWHERE is not set, or is empty",
        ),
        ('spark_remote = "sc://e/;token=file:none"', "spark_remote refers to file:none, but "),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tidetable.toml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(message)):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lake = "s3n://bucket"', "tidetable.toml: lake=s3n://bucket: s3n:// is not a scheme"),
        ('kafka = "no/such"', "/no/such: there is no such file"),
        ('spark_remote = "spark://e:7077"', "tidetable.toml: spark_remote is not a Spark Connect URL"),
    ],
)
def test_a_value_of_the_file_that_cannot_be_used_is_said_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tidetable.toml").write_text(text)
    with pytest.raises(SettingsError, match=re.escape(message)):
        read(tmp_path).tidetable()


def test_two_files_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tidetable.toml").touch()
    (tmp_path / "pyproject.toml").write_text("[tool.tidetable]")
    with pytest.raises(SettingsError, match="keep one of the two"):
        read(tmp_path)
    (tmp_path / "tidetable.toml").unlink()
    (tmp_path / "pyproject.toml").write_text('[tool.tidetable]\nlakes = ""')
    with pytest.raises(SettingsError, match=r"pyproject.toml, \[tool.tidetable\]: unknown setting 'lakes'"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        'spark_remote = "sc://engine:1/;use_ssl=true;token=planted"',
        'spark_remote = "sc://engine:1/;x-api-key=planted"',
        'spark_remote = "sc:/engine;token=planted"',
        'spark_remote = "sc://me:planted@engine"',
        'lake = "s3://me:planted@bucket"',
        'kafka = "sasl://me:planted@broker"',
        'token = "planted"',
        'serve_token = "planted-and-long-enough"',
        'spark_remote = ["sc://engine:1/;token=planted"]',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "tidetable.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        read(tmp_path)
    assert str(tmp_path / "tidetable.toml") in str(refused.value)
    assert "planted" not in f"{refused.value!r}{refused.value.__context__!r}"


def test_a_secret_is_a_reference_to_a_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hidden\n")
    toml = tmp_path / "tidetable.toml"
    toml.write_text('spark_remote = "sc://engine:1/;use_ssl=true;token=file:token"')
    assert read(tmp_path).spark_remote == "sc://engine:1/;use_ssl=true;token=hidden"
    assert "hidden" not in f"{read(tmp_path)!r}{read(tmp_path)}"
    toml.write_text('spark_remote = "sc://engine:1/;token=env:TOKEN"')
    assert read(tmp_path, TOKEN="hidden").spark_remote == "sc://engine:1/;token=hidden"
    toml.write_text('spark_remote = "env:REMOTE"\nlake = "env:BUCKET"')
    toml.write_text('serve_token = "file:token"')
    (tmp_path / "token").write_text("hidden-and-long-enough\n")
    assert read(tmp_path).token() == "hidden-and-long-enough"
    assert "hidden" not in f"{read(tmp_path)!r}{read(tmp_path)}"
    for rows in ("0", "many"):
        with pytest.raises(SettingsError, match="TIDETABLE_SERVE_ROWS: Input should be"):
            read(tmp_path, TIDETABLE_SERVE_ROWS=rows)
    toml.write_text('spark_remote = "env:REMOTE"\nlake = "env:BUCKET"')
    settings = read(tmp_path, REMOTE="sc://engine:1/;token=hidden", BUCKET="s3://bucket/lake")
    assert (settings.spark_remote, settings.lake) == ("sc://engine:1/;token=hidden", "s3://bucket/lake")


def test_every_setting_has_a_description_and_a_variable() -> None:
    reference = Settings.reference()
    assert [setting.variable for setting in reference] == [
        "TIDETABLE_LAKE",
        "TIDETABLE_KAFKA",
        "SPARK_REMOTE",
        "TIDETABLE_ENGINE_MEMORY",
        "TIDETABLE_TOPOLOGIES",
        "TIDETABLE_EXPECTATIONS",
        "TIDETABLE_CADENCE",
        "TIDETABLE_SCHEMA_REGISTRY_URL",
        "TIDETABLE_SCHEMA_REGISTRY_BASIC_AUTH",
        "TIDETABLE_SCHEMA_REGISTRY_TOKEN",
        "TIDETABLE_SCHEMA_REGISTRY_CA",
        "TIDETABLE_SCHEMA_REGISTRY_CERTIFICATE",
        "TIDETABLE_SCHEMA_REGISTRY_KEY",
        "TIDETABLE_SERVE_TOKEN",
        "TIDETABLE_SERVE_ROWS",
        "TIDETABLE_SERVE_BYTES",
        "TIDETABLE_SERVE_SECONDS",
    ]
    assert all(setting.description.endswith(".") for setting in reference)
