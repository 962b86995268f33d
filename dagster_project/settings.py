"""Reads the settings of the lake, the engine, Kafka, topologies and expectations: from the environment and one file.

The file is `tidetable.toml`, or the table `[tool.tidetable]` of `pyproject.toml`, in the working directory or the
nearest folder above it. An environment variable overrides the file. Relative paths in the file are relative to it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

from confluent_kafka import KafkaException
from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.sources.utils import parse_env_vars

from resources.embedded_kafka import EmbeddedKafka
from resources.embedded_registry import EmbeddedRegistry
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.registry import Registry
from resources.tidetable import Tidetable
from spark.engine.ports import Ports
from spark.topology.errors import did_you_mean

REMOTE = re.compile(r"sc://[^/:;@\s]+(:\d{1,5})?(/(;[^\s]*)?)?")

REGISTRY = re.compile(r"https?://[^/:@\s]+(:\d{1,5})?(/[^@\s]*)?")

SCHEMES = ("s3a", "s3", "gs", "abfs", "abfss", "az", "hdfs", "file")
"""URL schemes of lakes. With any other one, the reader without Spark finds no table, and gives no reason."""

FILE, PYPROJECT = "tidetable.toml", "pyproject.toml"

SHIPPED = "dagster_project.topologies"
"""The package of the topologies of this checkout; an installed wheel does not have it."""

PUBLIC = ("use_ssl", "user_id", "user_agent", "session_id")
"""Parameters of a Spark Connect URL that are no secrets. All others are sent to the server as headers."""

USERINFO = re.compile(r"//[^/@\s]*:[^/@\s]*@")
"""A user name with a password, in a URL."""

SECRETS = ("schema_registry_basic_auth", "schema_registry_token", "serve_token")
"""Settings that are secrets."""

FILES = ("expectations", "schema_registry_ca", "schema_registry_certificate", "schema_registry_key")
"""Settings that are paths."""

REFERENCE = re.compile(r"(env|file):(.+)")

TOKEN = 16
"""Characters of the read service's token, at least."""

CADENCE = "*/5 * * * *"


class SettingsError(Exception):
    """A setting is not valid.

    Correct the environment variable, or the line of the file, that the message names. `docs/reference/settings.md`
    describes every setting.
    """


class Setting(NamedTuple):
    """One row of the reference of settings."""

    key: str
    variable: str
    default: str
    description: str


def _split(value: object) -> object:
    """Split text at the path separator; return any other value unchanged."""
    return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value


class Settings(BaseSettings):
    """The settings: `Settings(...)` has those given, `Settings.from_environment()` reads the variables and the file."""

    model_config = SettingsConfigDict(
        env_prefix="TIDETABLE_",
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
    )

    lake: str = Field(
        default=".lake",
        description="The place of the tables: a folder, or the URL of an object store. The default is relative to the "
        "settings file, or to the working directory if there is no file.",
    )
    kafka: str | None = Field(
        default=None,
        description="Bootstrap servers, or the path of a file of librdkafka properties (`name=value` lines) for a "
        "cluster with security settings. By default the lake has a broker of its own, which is started at first use.",
    )
    spark_remote: str | None = Field(
        default=None,
        repr=False,  # it may hold a token
        validation_alias="SPARK_REMOTE",
        description="The URL of a Spark Connect server, `sc://host:port`. The server must see the lake under the same "
        "name. In the settings file, a token is a reference: `sc://host:port/;token=env:NAME` or `;token=file:PATH`. "
        "By default the lake has an engine of its own, which is started at first use.",
    )
    engine_memory: str | None = Field(
        default=None, description="The memory of the lake's own engine, such as `8g`. The default is `2g`."
    )
    topologies: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_split)] = Field(
        default=None,
        description="The places of the topologies: a folder of Python files, a module, or several of them. In the "
        "environment they are separated as in `PATH`; in the file they may be a list. The default is the folder "
        "`topologies` next to the settings file.",
    )
    expectations: str | None = Field(
        default=None,
        description="The folder of Great Expectations suites, `<topology>.<table>.json`. The default is the folder "
        "`expectations` next to each folder of topologies.",
    )

    cadence: str = Field(
        default=CADENCE,
        description="When Dagster's schedule of each topology ticks: a cron expression of five fields, in UTC. The "
        "schedule is off until you switch it on; the sensor ticks without it.",
    )

    schema_registry_url: str | None = Field(
        default=None,
        description="The URL of the schema registry of topics in Avro, with Confluent's API, such as "
        "`https://registry:8081`. By default it is the lake's own registry, which `tidetable up --registry` starts.",
    )
    schema_registry_basic_auth: str | None = Field(
        default=None,
        repr=False,
        description="User name and password for the schema registry, `name:password`. In the settings file a "
        "reference, `env:NAME` or `file:PATH`.",
    )
    schema_registry_token: str | None = Field(
        default=None,
        repr=False,
        description="A bearer token for the schema registry. In the settings file a reference, `env:NAME` or "
        "`file:PATH`.",
    )
    schema_registry_ca: str | None = Field(
        default=None,
        description="A PEM file of the certificate authorities that the schema registry's certificate must be of. By "
        "default they are those of the package certifi.",
    )
    schema_registry_certificate: str | None = Field(
        default=None, description="A PEM file of the certificate by which the schema registry knows this client."
    )
    schema_registry_key: str | None = Field(
        default=None, description="A PEM file of the private key of `schema_registry_certificate`."
    )
    serve_token: str | None = Field(
        default=None,
        repr=False,  # a secret
        description="The token that `tidetable serve` asks its clients for: at least 16 characters. In the settings "
        "file it is a reference: `env:NAME` or `file:PATH`.",
    )
    serve_rows: int = Field(
        default=10_000, ge=1, description="Rows, or changes of a key, in one answer of `tidetable serve`, at most."
    )
    serve_bytes: int = Field(
        default=10_000_000, ge=1_000, description="Bytes of an answer of `tidetable serve`, or of a request, at most."
    )
    serve_seconds: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that `tidetable serve` spends on an answer, at most, the wait for `at_least` included.",
    )

    _file: Path | None = PrivateAttr(default=None)
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # required by the interface, as are those below
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: `from_environment` reads variables and file itself."""
        return (init_settings,)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Settings:
        """The settings of environment variables and of the settings file. An empty variable counts as unset.

        Args:
            environment: the variables.
            folder: the settings file is in this folder or above it; by default, the working directory.

        Raises:
            SettingsError: the file cannot be read, has an unknown key, a value of a wrong type, or a secret.
        """
        by_variable = {field.validation_alias: name for name, field in cls.model_fields.items()}
        source = EnvSettingsSource(cls)
        source.env_vars = parse_env_vars(environment, ignore_empty=True)
        variables = {by_variable.get(name, name): value for name, value in source().items()}
        file = SettingsFile.nearest(Path.cwd() if folder is None else folder.resolve())
        if file is None:
            return cls._checked(variables, {name: cls._variable(name) for name in variables})
        values = file.settings(environment)
        defaults = {"lake": str(file.folder / ".lake"), "topologies": (str(file.folder / "topologies"),)}
        origins = {name: f"{file.name}: {name}" for name in values} | {name: cls._variable(name) for name in variables}
        settings = cls._checked({**defaults, **values, **variables}, origins)
        settings._file = file.path
        return settings.with_origin(str(file.path), *((defaults | values).keys() - variables.keys()))

    @classmethod
    def reference(cls) -> list[Setting]:
        """Every setting: its key in the file, its variable, its default, what it means."""
        return [
            Setting(name, cls._variable(name), str(field.default or ""), field.description or "")
            for name, field in cls.model_fields.items()
        ]

    @classmethod
    def _checked(cls, values: Mapping[str, object], origins: Mapping[str, str]) -> Settings:
        """The settings with some values, which were written at some places."""
        try:
            return cls(**values)  # type: ignore[arg-type]  # pydantic checks them
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = str(first["loc"][0])
            raise SettingsError(f"{origins.get(name, name)}: {first['msg']}") from None

    @classmethod
    def _variable(cls, name: str) -> str:
        alias = cls.model_fields[name].validation_alias
        return str(alias) if alias is not None else f"TIDETABLE_{name.upper()}"

    def with_origin(self, origin: str, *names: str) -> Settings:
        """The same settings; messages name `origin`, not the variables, as the place of those in `names`."""
        settings = self.model_copy()
        settings._origins = {**self._origins, **{name: f"{origin}: {name}" for name in names}}
        return settings

    def origin(self, name: str) -> str:
        """Where the user wrote a setting: its variable, or the file and its key."""
        return self._origins.get(name) or self._variable(name)

    @property
    def base(self) -> Path:
        """The folder from which modules of topologies may be imported: the settings file's, or the working one."""
        return Path.cwd() if self._file is None else self._file.parent

    @property
    def places(self) -> tuple[str, ...]:
        """The folders and modules of topologies.

        Raises:
            SettingsError: no setting names any, and this is not a checkout, which has its own.
        """
        if self.topologies is not None:
            return tuple(dict.fromkeys(self.topologies))
        if find_spec(SHIPPED) is not None:
            return (SHIPPED,)
        raise SettingsError(
            f"there are no topologies: TIDETABLE_TOPOLOGIES is not set, and no {FILE} is in {Path.cwd()} or a folder "
            "above it; `tidetable init DIR` writes a project"
        )

    def tidetable(self) -> Tidetable:
        """The engine, the lake and Kafka of the settings. Nothing is opened or started.

        Raises:
            SettingsError: a setting is not valid.
        """
        scheme, url, _ = self.lake.partition("://")
        if url and scheme not in SCHEMES:
            raise SettingsError(
                f"{self._lake}: {scheme}:// is not a scheme that both Spark and this process can read; "
                f"write a folder, or one of {', '.join(f'{known}://' for known in SCHEMES)}"
            )
        folder = self.folder
        if folder is not None and folder.exists() and not folder.is_dir():
            raise SettingsError(f"{self._lake} is a file: name a folder, which is created if it does not exist")
        if "%" in self.lake:
            raise SettingsError(
                f"{self._lake}: Spark and this process read % in a path differently: name a path without it"
            )
        return Tidetable(self._engine(), Lakehouse(self.lake), self._kafka(), self._registry())

    def token(self) -> str:
        """The token of the read service.

        Raises:
            SettingsError: there is none, or it is easy to guess. The message does not have it.
        """
        make = "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        if self.serve_token is None:
            raise SettingsError(
                f"the read service needs a token: set {self._variable('serve_token')}, or serve_token in {FILE} to "
                f"env:NAME or file:PATH; {make}"
            )
        if len(self.serve_token) < TOKEN or not (self.serve_token.isascii() and self.serve_token.isprintable()):
            raise SettingsError(
                f"{self.origin('serve_token')} is no token: it has at least {TOKEN} characters, of ASCII; {make}"
            )
        return self.serve_token

    def ports(self) -> Ports:
        """Return the ports of the engine. Starts the lake's own broker."""
        return self.tidetable().ports()

    doors = ports  # the former name

    @property
    def folder(self) -> Path | None:
        """The lake, if it is a folder of this machine."""
        if "://" in self.lake:
            return None
        try:
            return Path(self.lake).expanduser().resolve()
        except RuntimeError as error:  # `~name` of a user that does not exist
            raise SettingsError(f"{self._lake}: {error}") from None

    @property
    def _lake(self) -> str:
        return f"{self.origin('lake')}={self.lake}"

    def _engine(self) -> Engine:
        if self.folder is None and self.spark_remote is None:
            raise SettingsError(
                f"{self._lake} is not a local folder, so it has no engine of its own: set SPARK_REMOTE=sc://host:port"
            )
        if self.spark_remote is not None and not REMOTE.fullmatch(self.spark_remote):
            # Not shown: its parameters may hold a token.
            raise SettingsError(
                f"{self.origin('spark_remote')} is not a Spark Connect URL: "
                "write sc://host:port, or sc://host:port/;token=..."
            )
        engine = Engine(self.folder, self.spark_remote, lakehouse=Lakehouse(self.lake))
        return engine if self.engine_memory is None else replace(engine, memory=self.engine_memory)

    def _kafka(self) -> Kafka | EmbeddedKafka:
        if self.kafka is None:
            if self.folder is None:
                raise SettingsError(
                    f"{self._lake} is not a local folder, so it has no broker of its own: "
                    "set TIDETABLE_KAFKA to bootstrap servers, or to a file of librdkafka properties"
                )
            return EmbeddedKafka(self.folder)
        path = Path(self.kafka).expanduser()
        if path.is_file():
            kafka = Kafka(properties(path))
            try:
                kafka.admin()
            except KafkaException as error:  # librdkafka names the property
                raise SettingsError(f"{path}: {error.args[0].str()}") from None
            return kafka
        if _is_properties(self.kafka):
            raise SettingsError(f"{self.origin('kafka')}={self.kafka}: there is no such file")
        return Kafka({"bootstrap.servers": self.kafka})

    def _registry(self) -> Registry | EmbeddedRegistry | None:
        options = {
            "basic.auth.user.info": self.schema_registry_basic_auth,
            "bearer.auth.token": self.schema_registry_token,
            "ssl.ca.location": self.schema_registry_ca,
            "ssl.certificate.location": self.schema_registry_certificate,
            "ssl.key.location": self.schema_registry_key,
        }
        given = {name: value for name, value in options.items() if value is not None}
        url = self.schema_registry_url
        if url is None:
            if given:
                raise SettingsError(
                    f"{self._variable('schema_registry_url')} is not set, but credentials of a schema registry are: "
                    "set it to the registry's URL"
                )
            return None if self.folder is None else EmbeddedRegistry(self.folder)
        origin = self.origin("schema_registry_url")
        if REGISTRY.fullmatch(url) is None:  # not shown: it may have a password
            raise SettingsError(
                f"{origin} is not the URL of a registry: write https://host:port, and a user name with its password "
                "into schema_registry_basic_auth"
            )
        for name in ("schema_registry_ca", "schema_registry_certificate", "schema_registry_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise SettingsError(f"{self.origin(name)}={path}: there is no such file; name a PEM file")
        if "ssl.key.location" in given and "ssl.certificate.location" not in given:
            raise SettingsError(f"{self.origin('schema_registry_key')} needs schema_registry_certificate")
        if "bearer.auth.token" in given:
            if "basic.auth.user.info" in given:
                raise SettingsError(
                    f"{self.origin('schema_registry_token')} and {self.origin('schema_registry_basic_auth')} are both "
                    "set: a request has one of them; unset the other"
                )
            given |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.logical.cluster": ""}
        elif ":" not in given.get("basic.auth.user.info", ":"):
            raise SettingsError(f"{self.origin('schema_registry_basic_auth')} is not name:password")
        registry = Registry({"url": url, **given}, origin)
        try:
            registry.check()
        except (OSError, ValueError) as error:
            raise SettingsError(f"{origin}: the schema registry's certificate or key cannot be read: {error}") from None
        return registry


@dataclass(frozen=True)
class SettingsFile:
    """The settings of a project: a `tidetable.toml`, or a table of a `pyproject.toml`."""

    path: Path
    values: Mapping[str, object] = field(repr=False)  # it may contain secrets before they are refused

    @staticmethod
    def nearest(folder: Path) -> SettingsFile | None:
        """The settings file in a folder, or in the nearest folder above it; None if there is none.

        Raises:
            SettingsError: a file is not TOML, or a folder has both files.
        """
        for parent in (folder, *folder.parents):
            path, pyproject = parent / FILE, parent / PYPROJECT
            tool = _toml(pyproject).get("tool", {}) if pyproject.is_file() else {}
            table = tool.get("tidetable") if isinstance(tool, dict) else None
            if path.is_file() and table is not None:
                raise SettingsError(f"both {path} and [tool.tidetable] of {pyproject} exist: keep one of the two")
            if path.is_file():
                return SettingsFile(path, _toml(path))
            if table is not None:
                if not isinstance(table, dict):
                    raise SettingsError(f"{pyproject}: tool.tidetable is not a table: write [tool.tidetable]")
                return SettingsFile(pyproject, table)
        return None

    @property
    def folder(self) -> Path:
        """The folder of the file, to which its relative paths are relative."""
        return self.path.parent

    @property
    def name(self) -> str:
        """The name of the file in messages, with our table if it is a `pyproject.toml`."""
        return str(self.path) if self.path.name == FILE else f"{self.path}, [tool.tidetable]"

    def settings(self, environment: Mapping[str, str]) -> dict[str, object]:
        """The values by setting, with references resolved and paths absolute.

        Raises:
            SettingsError: a key is unknown, a secret is in plain text, or a reference has no target.
        """
        known = list(Settings.model_fields)
        for key in self.values:
            if key not in known:
                nearest = did_you_mean(key, known)
                raise SettingsError(
                    f"{self.name}: unknown setting {key!r}{nearest}; known settings: {', '.join(known)}"
                )
        return {key: self._value(key, value, environment) for key, value in self.values.items()}

    def _value(self, key: str, value: object, environment: Mapping[str, str]) -> object:
        if key == "topologies":
            places = _split(value)
            return [self._place(place) for place in places] if isinstance(places, tuple | list) else places
        if not isinstance(value, str):
            return value
        if secret := next(_secrets(key, value), None):
            raise SettingsError(
                f"{self.name}: {key} contains a secret in plain text, {secret}: "
                "write env:NAME or file:PATH instead, and the value into that variable or file"
            )
        if key == "spark_remote":
            url, *parameters = value.split(";")
            pairs = [parameter.partition("=") for parameter in parameters]
            resolved = [f"{name}{equals}{self._resolved(key, text, environment)}" for name, equals, text in pairs]
            return ";".join([url if parameters else self._resolved(key, url, environment), *resolved])
        text = self._resolved(key, value, environment)
        if key in FILES or (key == "lake" and "://" not in text):
            return self._absolute(text)
        if key == "kafka" and (_is_properties(text) or (self.folder / text).is_file()):
            return self._absolute(text)
        return text

    def _place(self, place: object) -> object:
        """A folder as an absolute path; any other place unchanged."""
        return self._absolute(place) if isinstance(place, str) and is_folder(place, self.folder) else place

    def _absolute(self, path: str) -> str:
        return str((self.folder / Path(path).expanduser()).resolve())

    def _resolved(self, key: str, value: str, environment: Mapping[str, str]) -> str:
        """The value that a reference names; any other value unchanged."""
        reference = REFERENCE.fullmatch(value)
        if reference is None:
            return value
        kind, name = reference.groups()
        if kind == "env":
            resolved = environment.get(name, "")
            missing = f"the variable {name} is not set, or is empty"
        else:
            path = Path(self._absolute(name))
            resolved = path.read_text().strip() if path.is_file() else ""
            missing = f"the file {path} does not exist, or is empty"
        if not resolved:
            raise SettingsError(f"{self.name}: {key} refers to {value}, but {missing}")
        return resolved


def is_folder(place: str, base: Path | None = None) -> bool:
    """Whether a place of topologies is a folder, existing or not, relative to `base` or the working directory."""
    return "/" in place or os.sep in place or place.startswith((".", "~")) or Path(base or "", place).is_dir()


def properties(path: Path) -> dict[str, str]:
    """The `name=value` lines of a file; a line that begins with # is a comment.

    Raises:
        SettingsError: a line is not `name=value`, or bootstrap.servers is missing.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text: write name=value lines") from None
    values = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = line.partition("=")
        if line.startswith("#") or line == "":
            continue
        if equals == "" or re.search(r"[:\s]", name.strip()):  # not shown: it may be a password
            raise SettingsError(f"{path}, line {number}: write name=value, as in bootstrap.servers=host:9092")
        values[name.strip()] = value.strip()
    if not values.get("bootstrap.servers"):
        raise SettingsError(f"{path} has no bootstrap.servers: add bootstrap.servers=host:9092")
    return values


def _is_properties(kafka: str) -> bool:
    return "/" in kafka or kafka.endswith(".properties")


def _secrets(key: str, value: str) -> Iterator[str]:
    """The names of the secrets that a value has in plain text."""
    if USERINFO.search(value):
        yield "a password"
    if key in SECRETS and not REFERENCE.fullmatch(value):
        yield "the whole value"
    if key == "spark_remote":
        for parameter in value.split(";")[1:]:
            name, _, text = parameter.partition("=")
            if text and name.strip().lower() not in PUBLIC and not REFERENCE.fullmatch(text):
                yield f"the parameter {name.strip()}"


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except ValueError as error:  # not valid TOML, or not valid UTF-8
        raise SettingsError(f"{path} is not TOML: {error}") from None
