"""TLS in the server: who gets in, who does not, and files that are refused before it listens. Certificates are made
here, sockets are real."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from perdure import Client
from perdure.dashboard import dashboard
from perdure.errors import Misuse
from perdure.http import ConnectionLimits, Tls, make_token, new_startup_token, serving
from perdure.storage.memory import MemoryStore

CA = trustme.CA()
OTHER_CA = trustme.CA()


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Tls]:
    """Writes a certificate for this machine and its key, and says where they are."""

    def write(ca: trustme.CA = CA, *, client_ca: bool = False, **options: Any) -> Tls:
        made = ca.issue_cert("127.0.0.1", "localhost", **options)
        certificate, key, authorities = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        key.chmod(0o600)
        authorities.write_bytes(CA.cert_pem.bytes())
        return Tls(certificate=certificate, key=key, client_ca=authorities if client_ca else None)

    return write


def trusting(*, ca: trustme.CA = CA, certificate_of: trustme.CA | None = None) -> ssl.SSLContext:
    """A client's side."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if certificate_of is not None:
        certificate_of.issue_cert("somebody@example.org").configure_cert(context)
    return context


async def get(url: str, context: ssl.SSLContext, path: str = "/health/live") -> httpx.Response:
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=30) as http:
        return await http.get(f"{url}{path}")


async def test_a_client_that_trusts_the_authority_is_answered(files: Callable[..., Tls]) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files()) as url:
        assert url.startswith("https://127.0.0.1:")
        answer = await get(url, trusting())
        assert answer.status_code == 200
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        token = await make_token(client, "ops", "admin")
        async with httpx.AsyncClient(verify=trusting(), trust_env=False, timeout=30) as http:
            headers = {"authorization": f"Bearer {token}"}
            assert [(await http.get(f"{url}/api/v1/runs", headers=headers)).status_code for _ in range(3)] == [200] * 3


async def test_without_tls_nothing_is_said_about_it() -> None:
    async with (
        Client(MemoryStore()) as client,
        serving(client, port=0) as url,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        assert "strict-transport-security" not in (await http.get(f"{url}/health/live")).headers


async def test_sessions_are_for_tls_only(files: Callable[..., Tls]) -> None:
    async with Client(MemoryStore()) as client:
        token = new_startup_token()
        async with serving(client, port=0, tls=files(), pages=dashboard(), startup_token=token) as url:
            answer = await get(url, trusting(), f"/ui/sign-in?token={token}")
            assert "; Secure" in answer.headers["set-cookie"]


async def test_a_client_that_trusts_another_authority_does_not_go_on(files: Callable[..., Tls]) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files()) as url:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(url, trusting(ca=OTHER_CA))
        assert (await get(url, trusting())).status_code == 200


async def test_plain_http_is_not_answered(files: Callable[..., Tls]) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files()) as url:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"{url.replace('https', 'http')}/health/live")
        assert (await get(url, trusting())).status_code == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")  # what is old is what is tested
async def test_old_tls_is_refused(files: Callable[..., Tls]) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files()) as url:
        old = trusting()
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            await get(url, old)
        newer = trusting()
        newer.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await get(url, newer)).status_code == 200


@pytest.mark.parametrize("certificate_of", [None, OTHER_CA], ids=["none", "another authority's"])
async def test_with_mutual_tls_a_client_without_a_certificate_of_the_authority_is_out(
    files: Callable[..., Tls], certificate_of: trustme.CA | None
) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files(client_ca=True)) as url:
        with pytest.raises(httpx.TransportError):
            await get(url, trusting(certificate_of=certificate_of))
        assert (await get(url, trusting(certificate_of=CA))).status_code == 200


async def test_sockets_that_shake_no_hands_end_and_keep_nobody_out(
    files: Callable[..., Tls], caplog: pytest.LogCaptureFixture
) -> None:
    limits = ConnectionLimits(connections_max=20, head_s=3600)
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files(), limits=limits) as url:
        port = httpx.URL(url).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        assert (await get(url, trusting())).status_code == 200
        # The oldest ones were closed to make room.
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()


async def test_a_handshake_ends_in_time(files: Callable[..., Tls], caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(head_s=0.2)
    with caplog.at_level(logging.WARNING, "perdure.http"):
        async with Client(MemoryStore()) as client, serving(client, port=0, tls=files(), limits=limits) as url:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
                async with asyncio.timeout(60):
                    assert await reader.read() == b""
                writer.close()
    # What strangers cause is said once.
    assert sum("handshake of TLS" in record.message for record in caplog.records) <= 1


async def test_a_request_may_come_with_the_end_of_the_handshake(files: Callable[..., Tls]) -> None:
    """TLS 1.3 lets a client send at once. Sent in one piece, what it sends is there before anybody reads."""
    async with Client(MemoryStore()) as client, serving(client, port=0, tls=files()) as url:
        for _ in range(20):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            side = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            with pytest.raises(ssl.SSLWantReadError):
                side.do_handshake()
            writer.write(outgoing.read())
            while True:
                incoming.write(await reader.read(65_536))
                try:
                    side.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    continue
            side.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            writer.write(outgoing.read())
            answer = b""
            while b"200 OK" not in answer:
                data = await reader.read(65_536)
                assert data, answer
                incoming.write(data)
                try:
                    answer += side.read(65_536)
                except ssl.SSLWantReadError:
                    continue
            writer.transport.abort()


# Files.


async def refusal(tls: Tls) -> str:
    with pytest.raises(Misuse) as caught:
        async with Client(MemoryStore()) as client, serving(client, port=0, tls=tls):
            pass
    return str(caught.value)


@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
async def test_a_file_that_is_missing_or_wrong_is_named(files: Callable[..., Tls], which: str, tmp_path: Path) -> None:
    tls = files(client_ca=True)
    path = Path(str(getattr(tls, which)))
    path.unlink()
    assert f"{path}: No such file" in await refusal(tls)
    path.write_text("nonsense")
    path.chmod(0o600)
    assert str(path) in await refusal(tls)
    path.write_bytes(b"\x30\x82\xff\xff")
    assert "not in PEM" in await refusal(tls)
    path.unlink()
    path.mkdir()
    assert f"{path}: Is a directory" in await refusal(tls)


async def test_a_key_of_another_certificate_is_refused(files: Callable[..., Tls]) -> None:
    tls = files()
    Path(tls.key).write_bytes(CA.issue_cert("localhost").private_key_pem.bytes())
    assert f"the key {tls.key} does not belong to the certificate" in await refusal(tls)


async def test_an_encrypted_key_is_refused_and_nobody_is_asked(files: Callable[..., Tls]) -> None:
    from cryptography.hazmat.primitives import serialization as form

    tls = files()
    plain = form.load_pem_private_key(Path(tls.key).read_bytes(), None)
    secret = form.BestAvailableEncryption(b"secret")
    Path(tls.key).write_bytes(plain.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, secret))
    assert f"the key {tls.key} is encrypted" in await refusal(tls)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
async def test_a_key_that_others_can_read_is_refused(files: Callable[..., Tls], mode: int) -> None:
    tls = files()
    Path(tls.key).chmod(mode)
    if mode == 0o640 and os.geteuid() == 0:  # as distributions have it: a group may read root's
        async with Client(MemoryStore()) as client, serving(client, port=0, tls=tls):
            return
    assert f"chmod 600 {tls.key}" in await refusal(tls)


async def test_a_certificate_is_valid_now(files: Callable[..., Tls], caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    over = files(not_after=now - timedelta(seconds=1))
    assert f"{over.certificate} has expired, at" in await refusal(over)
    early = files(not_before=now + timedelta(days=1))
    assert f"{early.certificate} is valid from" in await refusal(early)
    with caplog.at_level(logging.WARNING, "perdure.http"):
        async with Client(MemoryStore()) as client, serving(client, port=0, tls=files(not_after=now + timedelta(2))):
            pass
    assert any("expires at" in record.message for record in caplog.records)


async def test_a_certificate_that_is_cut_off_is_refused(files: Callable[..., Tls]) -> None:
    tls = files()
    text = Path(tls.certificate).read_text()
    first, _, _ = text.partition("-----END")
    lines = first.splitlines()
    Path(tls.certificate).write_text("\n".join([*lines[:3], "-----END CERTIFICATE-----", ""]))
    assert "cannot read the certificate" in await refusal(tls)
