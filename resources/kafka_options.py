"""Translates librdkafka's configuration for Spark's Java client: one configuration serves both clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}

# Same name and same meaning in both clients.
SAME = {
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "ssl.keystore.location",
    "ssl.keystore.password",
}

# Prefixes of security properties. All properties without one tune librdkafka only.
SECURITY = ("enable.sasl.", "enable.ssl.", "https.", "sasl.", "security.", "ssl.")

TRANSLATED = {
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
}

LOGIN = "org.apache.kafka.common.security"
LOGIN_MODULES = {
    "PLAIN": f"{LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{LOGIN}.scram.ScramLoginModule",
}


class Untranslatable(ValueError):
    """A security property of librdkafka has no counterpart in Spark's Kafka client.

    Remove the property from the properties file, or write the one that the message names: `docs/how-to/kafka.md` lists
    the translated properties.
    """


def spark_options(config: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka source that open the same connection.

    Raises:
        Untranslatable: a security property has no counterpart in Spark's client.
    """
    config = {ALIASES.get(name, name): value for name, value in config.items()}
    if unknown := sorted(n for n in config if n.startswith(SECURITY) and n not in SAME | TRANSLATED):
        raise Untranslatable(f"Spark's Kafka client has no setting like {', '.join(unknown)}: remove it")
    java = {name: value for name, value in config.items() if name in SAME}
    java |= _security(config) | _login(config) | _trusted(config) | _own_certificate(config)
    return {f"kafka.{name}": value for name, value in java.items()}


def _security(config: Mapping[str, str]) -> dict[str, str]:
    if config.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise Untranslatable(
            "Spark's Kafka client always verifies certificates: remove enable.ssl.certificate.verification=false, and "
            "set ssl.ca.location to the certificate authority"
        )
    java = {}
    if protocol := config.get("security.protocol"):
        java["security.protocol"] = protocol.upper()
    if (check := config.get("ssl.endpoint.identification.algorithm")) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if check == "none" else check
    return java


def _login(config: Mapping[str, str]) -> dict[str, str]:
    """SASL with user name and password, as a line of a JAAS configuration."""
    if not config.get("security.protocol", "").upper().startswith("SASL"):
        return {}
    mechanism = config.get("sasl.mechanism", "GSSAPI")  # librdkafka's default
    if mechanism not in LOGIN_MODULES:
        known = ", ".join(LOGIN_MODULES)
        raise Untranslatable(f"sasl.mechanism {mechanism} is not supported: use one of {known}")
    name, password = (_quoted(config.get(key, "")) for key in ("sasl.username", "sasl.password"))
    line = f"{LOGIN_MODULES[mechanism]} required username={name} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": line}


def _quoted(text: str) -> str:
    """A quoted JAAS string: quotes and line ends are escaped as in C."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _trusted(config: Mapping[str, str]) -> dict[str, str]:
    """The trusted certificate authorities, from a PEM file or PEM text."""
    if text := config.get("ssl.ca.pem"):
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
    if location := config.get("ssl.ca.location"):
        path = Path(location).resolve()  # the engine has another working directory
        if not path.is_file():
            raise Untranslatable(f"ssl.ca.location is {location}, which is not a file: name a PEM file")
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(path)}
    return {}


def _own_certificate(config: Mapping[str, str]) -> dict[str, str]:
    """The client's certificate and key, from PKCS#12 or PEM. PEM is passed as text: Java expects both in one file."""
    if "ssl.keystore.location" in config:
        path = Path(config["ssl.keystore.location"]).resolve()
        return {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(path)}
    chain, key = _pem(config, "ssl.certificate"), _pem(config, "ssl.key")
    if chain is None and key is None:
        return {}
    if chain is None or key is None:
        raise Untranslatable("only one of ssl.certificate and ssl.key is set: set both")
    key = _readable(key, config.get("ssl.key.password"))
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _pem(config: Mapping[str, str], what: str) -> str | None:
    if text := config.get(f"{what}.pem"):
        return text
    location = config.get(f"{what}.location")
    return Path(location).read_text() if location else None


def _readable(key: str, password: str | None) -> str:
    """The key as decrypted PKCS#8. Java 17 reads neither the older formats nor current encryption."""
    # Imported here because the import takes 0.1 s, and few clusters need it.
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        opened = load_pem_private_key(key.encode(), password.encode() if password else None)
    except (ValueError, TypeError) as error:
        raise Untranslatable(f"ssl.key cannot be read ({error}): check the key and ssl.key.password") from error
    return opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
