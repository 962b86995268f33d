"""A registry behind a proxy that asks for certificates and credentials, as registries stand in production."""

from __future__ import annotations

import base64
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from dagster_project.settings import Settings, SettingsError
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.registry import Registry
from spark.engine.errors import RegistryRefused, RegistryUnavailable
from spark.engine.ports import Ports
from spark.engine.publishing.written import Written
from spark.topology import Consumed, Produced, StreamsBuilder
from spark.topology.columns import Column
from tests.support.secured import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASIC = f"Basic {base64.b64encode(b'ann:planted:word').decode()}"
BEARER = "Bearer planted-token"
READER = "Bearer planted-reader"
LONG = '{"type":"record","name":"Row","fields":[{"name":"n","type":"long"}]}'


@pytest.fixture(scope="module")
def guarded(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of the registry behind the proxy, and the folder with the certificates."""
    folder, authority = tmp_path_factory.mktemp("papers"), Authority()
    (folder / "ca.pem").write_bytes(authority.certificate)
    for name in ("server", "client"):
        certificate, key = authority.issue(name)
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
    host = registry.address.partition("/apis")[0]

    class Proxy(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            if self.headers["Authorization"] not in (BASIC, BEARER, READER):
                self.send_error(401)
                return
            if self.command == "POST" and self.headers["Authorization"] == READER:
                self.send_error(403)
                return
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)) or None
            kind = self.headers["Content-Type"] or "application/json"
            request = Request(f"{host}{self.path}", body, {"Content-Type": kind}, method=self.command)
            try:
                with urlopen(request) as answer:
                    status, content = answer.status, answer.read()
            except HTTPError as error:
                status, content = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _forward  # the names of the library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/apis/ccompat/v7", folder
    server.shutdown()
    server.server_close()


def settings(guarded: tuple[str, Path], lake: Path, **more: str) -> Settings:
    url, folder = guarded
    environment = {
        "TIDETABLE_LAKE": str(lake),
        "TIDETABLE_SCHEMA_REGISTRY_URL": url,
        "TIDETABLE_SCHEMA_REGISTRY_CA": str(folder / "ca.pem"),
        "TIDETABLE_SCHEMA_REGISTRY_CERTIFICATE": str(folder / "client.pem"),
        "TIDETABLE_SCHEMA_REGISTRY_KEY": str(folder / "client.key"),
    }
    environment |= {f"TIDETABLE_SCHEMA_REGISTRY_{name.upper()}": value for name, value in more.items()}
    return Settings.from_environment({name: value for name, value in environment.items() if value}, lake)


def opened(made: Settings) -> Registry:
    found = made.tidetable().schema_registry()
    assert found is not None
    return found


def test_credentials_and_certificates_open_the_registry(guarded: tuple[str, Path], tmp_path: Path) -> None:
    for more in ({"basic_auth": "ann:planted:word"}, {"token": "planted-token"}):
        made = settings(guarded, tmp_path, **more)
        registry = opened(made)
        assert registry.register("guarded-value", "AVRO", LONG) == registry.versions("guarded-value")[0].id
        assert "planted" not in f"{made!r} {registry!r}"


def test_what_does_not_open_it_is_named_without_the_secrets(guarded: tuple[str, Path], tmp_path: Path) -> None:
    for more in ({"basic_auth": "ann:planted-wrong"}, {"token": "planted-wrong"}, {"ca": "", "token": "planted-token"}):
        with pytest.raises(RegistryUnavailable, match="TIDETABLE_SCHEMA_REGISTRY_URL") as caught:
            opened(settings(guarded, tmp_path, **more)).versions("guarded-value")
        assert "planted" not in str(caught.value)
    for more, message in (
        ({"basic_auth": "planted"}, "TIDETABLE_SCHEMA_REGISTRY_BASIC_AUTH is not name:password"),
        ({"basic_auth": "ann:planted", "token": "planted"}, "are both set"),
        ({"certificate": ""}, "needs schema_registry_certificate"),
        ({"ca": "/no/such/file"}, "TIDETABLE_SCHEMA_REGISTRY_CA=/no/such/file"),
        ({"key": str(guarded[1] / "ca.pem")}, "certificate or key cannot be read"),
        ({"url": ""}, "TIDETABLE_SCHEMA_REGISTRY_URL is not set"),
    ):
        with pytest.raises(SettingsError, match=message) as refused:
            settings(guarded, tmp_path, **more).tidetable()
        assert "planted" not in str(refused.value)


def test_who_may_not_register_a_schema_is_told_what_to_register(
    guarded: tuple[str, Path], registry: Registry, tmp_path: Path
) -> None:
    for token, code in (("planted-reader", 403), ("planted-wrong", 401)):
        message = rf"these credentials may not write closed-value \({code}\): register this schema first: .*\"Row\""
        with pytest.raises(RegistryRefused, match=message) as caught:
            opened(settings(guarded, tmp_path, token=token)).register("closed-value", "AVRO", LONG)
        assert "planted" not in str(caught.value)
        assert "does not answer" not in str(caught.value)
    name = f"closed-{uuid4().hex[:8]}"  # the registry may be that of an earlier run
    builder = StreamsBuilder("closed")
    builder.table("items", Consumed.json(key="id bigint", value="n bigint")).to(name, Produced.avro())
    table = builder.build().tables[-1]
    reader = opened(settings(guarded, tmp_path, token="planted-reader"))
    ports = Ports(Engine(None, "sc://none"), Lakehouse(str(tmp_path)), Kafka({}), reader)
    with pytest.raises(
        RegistryRefused, match=rf"topic {name}: nothing of .* was sent.*may not write {name}-key"
    ) as caught:
        Written(ports, table).registered("key", (Column("id", "bigint"),))
    assert "compatibility" not in str(caught.value)
    # What is registered already can be published.
    known = registry.register(f"{name}-key", "AVRO", '"long"')
    writing = Written(ports, table).registered("key", (Column("id", "bigint"),))
    assert writing is not None
    assert writing.id == known


def test_secrets_in_the_settings_file_are_references(tmp_path: Path) -> None:
    for key in ("schema_registry_basic_auth", "schema_registry_token"):
        (tmp_path / "tidetable.toml").write_text(f'{key} = "ann:planted"\nschema_registry_url = "https://registry"\n')
        with pytest.raises(SettingsError, match=f"{key} contains a secret in plain text") as refused:
            Settings.from_environment({}, tmp_path)
        assert "planted" not in str(refused.value)
        (tmp_path / "tidetable.toml").write_text(f'{key} = "env:SECRET"\nschema_registry_url = "https://registry"\n')
        made = Settings.from_environment({"SECRET": "ann:planted"}, tmp_path)
        assert getattr(made, key) == "ann:planted"
