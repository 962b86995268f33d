"""A broker that lets nobody in without a password or a certificate."""

from __future__ import annotations

import datetime
import ipaddress
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from resources.embedded_kafka import PROPERTIES, EmbeddedKafka
from resources.kafka import Kafka
from resources.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# All that could end a quoted string, an option or a line early.
PASSWORD = r"""planted "b" 'c' \ d; e=f, #g $h %20"""

LOCKED = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}
advertised.listeners=SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{password}";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.tls.ssl.client.auth=required
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={folder}/broker.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={folder}/ca.pem
"""


class Authority:
    """Signs certificates for this machine."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("authority", self._key, "authority", x509.BasicConstraints(True, None))

    def issue(self, name: str, password: bytes | None = None) -> tuple[bytes, bytes]:
        """A certificate and its key, both as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pkcs8 = serialization.PrivateFormat.PKCS8
        certificate = self._sign(name, key, "authority", here)
        return certificate, key.private_bytes(serialization.Encoding.PEM, pkcs8, lock)

    def _sign(self, subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, extension: x509.ExtensionType) -> bytes:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


@contextmanager
def locked(lake: Path) -> Iterator[dict[str, dict[str, str]]]:
    """A broker that lets nobody in by its SASL and TLS ports without the right papers: what opens it, by the way in."""
    ports = {name: free_port() for name in ("port", "controller", "sasl", "tls")}
    (lake / "_kafka").mkdir(parents=True)
    _write_papers(lake)
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")  # for JAAS, then for properties
    settings = PROPERTIES.format(**ports) + LOCKED.format(**ports, password=quoted, folder=lake)
    (lake / "_kafka" / "server.properties").write_text(settings)
    broker = EmbeddedKafka(lake)
    try:
        _introduce(Kafka({"bootstrap.servers": broker.start()}))
        yield _ways(lake, ports)
    finally:
        broker.stop()


def _introduce(open_door: Kafka) -> None:
    """Make the topic and the user, by the door that is open to the machine."""
    open_door.create_topic("guarded")
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("ann", scram, PASSWORD.encode())
    open_door.admin().alter_user_scram_credentials([user])["ann"].result(10)


def _ways(folder: Path, ports: dict[str, int]) -> dict[str, dict[str, str]]:
    sasl = {
        "bootstrap.servers": f"127.0.0.1:{ports['sasl']}",
        "security.protocol": "sasl_plaintext",
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
    }
    tls = {
        "bootstrap.servers": f"127.0.0.1:{ports['tls']}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / "client.pem"),
        "ssl.key.location": str(folder / "client.key"),
        "ssl.key.password": "planted-unlock",
    }
    return {
        "PLAIN": {**sasl, "sasl.mechanism": "PLAIN"},
        "SCRAM": {**sasl, "sasl.mechanism": "SCRAM-SHA-256"},
        "TLS": tls,
    }


def _write_papers(folder: Path) -> None:
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "broker.pem").write_bytes(b"".join(reversed(authority.issue("broker"))))
    certificate, key = authority.issue("client", b"planted-unlock")
    (folder / "client.pem").write_bytes(certificate)
    (folder / "client.key").write_bytes(key)
