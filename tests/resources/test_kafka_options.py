"""The same connection in librdkafka's names and in Java's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from resources.kafka_options import Untranslatable, spark_options

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {
    "bootstrap.servers": "a:1",
    "security.protocol": "sasl_ssl",
    "sasl.username": "ann",
    "sasl.password": "secret",
}


def test_an_open_broker_needs_its_address_alone() -> None:
    assert spark_options({"bootstrap.servers": "a:1,b:2"}) == {"kafka.bootstrap.servers": "a:1,b:2"}
    assert spark_options({"metadata.broker.list": "a:1"}) == {"kafka.bootstrap.servers": "a:1"}


@pytest.mark.parametrize("spelling", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)]
)
def test_a_name_and_a_password_become_a_login_line(spelling: str, mechanism: str, module: str) -> None:
    assert spark_options({**SASL, spelling: mechanism}) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="ann" password="secret";',
    }


@pytest.mark.parametrize(
    ("password", "quoted"),
    [
        ('say "hi"; required', r'"say \"hi\"; required"'),
        (r"back\slash", r'"back\\slash"'),
        ("two\nlines", r'"two\nlines"'),
        ("", '""'),
    ],
)
def test_a_password_cannot_end_its_line(password: str, quoted: str) -> None:
    options = spark_options({**SASL, "sasl.mechanism": "PLAIN", "sasl.password": password})
    assert options["kafka.sasl.jaas.config"].endswith(f"password={quoted};")


@pytest.mark.parametrize("mechanism", [None, "GSSAPI", "OAUTHBEARER"])
def test_other_logins_are_refused_by_name(mechanism: str | None) -> None:
    config = SASL if mechanism is None else {**SASL, "sasl.mechanism": mechanism}
    with pytest.raises(Untranslatable, match=mechanism or "GSSAPI"):
        spark_options(config)


def test_an_authority_is_a_pem_file_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    monkeypatch.chdir(tmp_path)
    options = spark_options({"security.protocol": "ssl", "ssl.ca.location": "ca.pem"})
    assert options == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(tmp_path / "ca.pem"),
    }


def test_a_folder_of_authorities_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Untranslatable, match=r"ssl\.ca\.location"):
        spark_options({"ssl.ca.location": str(tmp_path)})


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", [None, "unlock"])
def test_a_certificate_and_its_key_go_along_as_text_that_java_reads(
    form: PrivateFormat, password: str | None, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    given = key.private_bytes(Encoding.PEM, form, lock).decode()
    unlocked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    (tmp_path / "cert.pem").write_text("chain")
    (tmp_path / "key.pem").write_text(given)
    by_text = {"ssl.certificate.pem": "chain", "ssl.key.pem": given}
    by_file = {
        "ssl.certificate.location": str(tmp_path / "cert.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
    }
    for config in (by_text, by_file):
        opened = {**config, "ssl.key.password": password} if password else config
        assert spark_options(opened) == {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": "chain",
            "kafka.ssl.keystore.key": unlocked,
        }


def test_a_key_that_does_not_open_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"unlock")).decode()
    for password in ({}, {"ssl.key.password": "wrong"}):
        with pytest.raises(Untranslatable, match=r"ssl\.key\.password"):
            spark_options({"ssl.certificate.pem": "chain", "ssl.key.pem": locked, **password})


def test_a_keystore_is_pkcs12(tmp_path: Path) -> None:
    path = str(tmp_path / "client.p12")
    assert spark_options({"ssl.keystore.location": path, "ssl.keystore.password": "secret"}) == {
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": path,
        "kafka.ssl.keystore.password": "secret",
    }


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(Untranslatable, match=r"ssl\.key"):
        spark_options({"ssl.certificate.pem": "chain"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.cipher.suites", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("ssl.crl.location", "/crl.pem"),
        ("sasl.kerberos.keytab", "/keytab"),
        ("sasl.oauthbearer.config", "scope=x"),
    ],
)
def test_no_security_is_dropped_silently(name: str, value: str) -> None:
    with pytest.raises(Untranslatable, match=name):
        spark_options({"bootstrap.servers": "a:1", name: value})


def test_a_host_name_may_go_unchecked_in_both() -> None:
    options = spark_options({"ssl.endpoint.identification.algorithm": "none"})
    assert options == {"kafka.ssl.endpoint.identification.algorithm": ""}


def test_what_tunes_librdkafka_says_nothing_to_spark() -> None:
    tuned = {"bootstrap.servers": "a:1", "linger.ms": "5", "group.id": "g", "socket.timeout.ms": "1000"}
    assert spark_options(tuned) == {"kafka.bootstrap.servers": "a:1"}
