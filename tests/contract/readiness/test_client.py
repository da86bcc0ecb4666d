# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The client against real sockets that behave badly: whatever comes, it ends in time and says what was wrong."""

from __future__ import annotations

import datetime
import io
import ipaddress
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Client, url_host
from ansible_collections.gpufleet.sglang.tests.support.standin.standin import Standin
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BOUND = 0.4
"""Seconds that a request may take."""


@contextmanager
def standin(**script: Any) -> Iterator[Standin]:
    with Standin({"port": 0, **script}, io.StringIO()) as server:
        assert server.url
        yield server


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"body": "x" * 1024, "size": 1 << 30}, "more than 1048576 bytes"),
        ({"status": 302, "headers": {"Location": "/"}, "body": "x" * 1024, "size": 1 << 30}, "more than 1048576 bytes"),
        ({"endless_headers": 0.0}, "more than 100 headers"),
        ({"endless_header": 0.0}, "more than 65536 bytes"),
        ({"endless_headers": 0.05}, "no whole answer within"),
        ({"endless_header": 0.05}, "no whole answer within"),
        ({"body": "x" * 1000, "drip": 0.05}, "no whole answer within"),
        ({"delay": 30}, "no whole answer within"),
        ({"body": "x" * 10, "size": 1000, "cut": 10}, "IncompleteRead"),
    ],
)
def test_bad_answers_are_cut_off(answer: dict[str, Any], said: str) -> None:
    """In time, and without taking in what nobody wants."""
    with standin(answers={"/v1/models": answer}) as server:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        got = Client(server.url).get("/v1/models", BOUND)
        assert time.monotonic() - began < BOUND + 0.5
        assert said in got.error
        assert got.status == 0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 << 10  # KiB


def test_the_time_for_a_request_is_over_once() -> None:
    """A signal that comes late would end whatever runs then."""
    with standin(answers={"/v1/models": {"delay": 30}}) as server:
        client = Client(server.url)
        for _attempt in range(3):
            assert "no whole answer within" in client.get("/v1/models", 0.05).error
        time.sleep(0.2)
        assert client.get("/ready", BOUND).status in (200, 503)


def test_redirects_are_not_followed() -> None:
    with (
        standin() as other,
        standin(answers={"/v1/models": {"status": 302, "headers": {"Location": f"{other.url}/v1/models"}}}) as server,
    ):
        assert Client(server.url).get("/v1/models", BOUND).status == 302
        assert not other.requests


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with standin() as proxy, standin() as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert Client(server.url).get("/v1/models", BOUND).status == 200
        assert not proxy.requests


@pytest.mark.parametrize("body", ["<html><body>Bad gateway</body></html>", "", "{", "\x00\xff", "[" * 100_000])
def test_what_is_not_json_is_none(body: str) -> None:
    with standin(answers={"/v1/models": {"body": body}}) as server:
        got = Client(server.url).get("/v1/models", BOUND)
        assert got.status == 200
        assert got.json() is None
        assert len(got.text) < 200


def test_a_port_that_nobody_listens_on() -> None:
    with standin() as server:
        url = server.url
    assert "Connection refused" in Client(url).get("/v1/models", BOUND).error


@pytest.mark.parametrize("key", ["plain", "with 'quotes' \"and\" $", "mit Umläuten ßé"])
def test_keys(key: str) -> None:
    with standin(api_key="none of them") as server:
        assert Client(server.url, key).get("/v1/models", BOUND).status == 401
        assert Client(server.url, key).get("/health", BOUND).status in (200, 503)
    with standin(api_key=key.encode().decode("latin-1")) as server:  # how http.server reads headers
        assert Client(server.url, key).get("/v1/models", BOUND).status == 200


@pytest.mark.parametrize(
    ("host", "in_url"),
    [
        ("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "[::1]"), ("[::]", "[::1]"), ("::1", "[::1]"),
        ("10.0.0.5", "10.0.0.5"), ("gpu-a", "gpu-a"),
    ],
)  # fmt: skip
def test_where_a_client_on_the_same_host_asks(host: str, in_url: str) -> None:
    assert url_host(host) == in_url


@dataclass(frozen=True)
class Authority:
    """A certificate authority that writes what it signs into a directory."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    @property
    def path(self) -> str:
        return str(self.directory / "ca.pem")

    def sign(self, kind: str, subject: str, days: int, *, is_authority: bool = False) -> dict[str, str]:
        key = self.key if is_authority else ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        alternative: x509.GeneralName = x509.DNSName(subject)
        if subject[0].isdigit():
            alternative = x509.IPAddress(ipaddress.ip_address(subject))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name if is_authority else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    key_cert_sign=is_authority,
                    crl_sign=is_authority,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        paths = {"certfile": self.directory / f"{kind}.pem", "keyfile": self.directory / f"{kind}.key"}
        paths["certfile"].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths["keyfile"].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of the tests")])
    made = Authority(tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1()), name)
    made.sign("ca", "authority.invalid", 30, is_authority=True)
    return made


def test_tls_with_the_authority_given(authority: Authority) -> None:
    with standin(tls=authority.sign("good", "127.0.0.1", 30)) as server:
        assert Client(server.url, verify=authority.path).get("/v1/models", 2).status == 200


@pytest.mark.parametrize(
    ("subject", "days", "trusted", "said"),
    [
        ("127.0.0.1", 30, False, "unable to get local issuer certificate"),
        ("127.0.0.1", -1, True, "certificate has expired"),
        ("192.0.2.1", 30, True, "IP address mismatch"),
        ("elsewhere.invalid", 30, True, "127.0.0.1"),
    ],
)
def test_tls_that_is_not_trusted(authority: Authority, subject: str, days: int, trusted: bool, said: str) -> None:
    with standin(tls=authority.sign("bad", subject, days)) as server:
        got = Client(server.url, verify=authority.path if trusted else True).get("/v1/models", 2)
        assert said in got.error
        assert got.untrusted
        assert Client(server.url, verify=False).get("/v1/models", 2).status == 200


def test_http_and_https_confused(authority: Authority) -> None:
    """Not a matter of trust: it is waited for."""
    with standin() as server:
        got = Client(server.url.replace("http:", "https:")).get("/v1/models", 2)
        assert got.error
        assert not got.untrusted
    with standin(tls=authority.sign("good", "127.0.0.1", 30)) as server:
        got = Client(server.url.replace("https:", "http:")).get("/v1/models", 2)
        assert got.error
        assert not got.untrusted
