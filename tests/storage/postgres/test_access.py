"""Getting in: TLS, passwords and the environment; what is said when the door stays shut, and what never is."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from perdure import Engine
from perdure.errors import Misuse, StoreBroken, StoreBusy, StoreError
from perdure.storage import open_store
from perdure.testing.conformance.base import a_run, insert
from tests.storage.postgres.meddler import author_on, meddler, schema_of
from tests.storage.postgres.proxy import tls_to
from tests.storage.postgres.server import _free_port

PASSWORD = "s:e/c@r?e#t%"


def port_of(url: str) -> int:
    return int(re.search(r":(\d+)/", url)[1])  # type: ignore[index]


async def refusal(url: str) -> StoreError:
    """What is said to who may not come in: nothing of it has the password."""
    with pytest.raises(StoreError) as caught:
        await open_store(url).open()
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return caught.value


async def locked(url: str) -> tuple[str, str]:
    """A role that has to give its password, and the URL without one."""
    schema = schema_of(url)
    role = f"locked_{schema}"
    async with meddler(url) as other:
        if not await other.fetchval("select exists (select 1 from pg_roles where rolname = 'locked')"):
            await other.execute("create role locked")
        await other.execute(f"create role {role} login in role locked password '{PASSWORD}'")
        await other.execute(f"create schema {schema} authorization {role}")
    return role, url.replace("postgres@", f"{role}@")


async def works(url: str) -> None:
    async with author_on(url) as author:
        await author.commit(insert(a_run()))


# ---------------------------------------------------------------------------------------------------------------------
# Passwords and the environment


async def test_a_password_in_the_url(url: str) -> None:
    role, own_url = await locked(url)
    await works(own_url.replace(f"{role}@", f"{role}:{quote(PASSWORD, safe='')}@"))


async def test_a_password_in_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, own_url = await locked(url)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    await works(own_url)


@pytest.mark.parametrize("way", ["option", "variable"])
async def test_a_password_in_a_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    role, own_url = await locked(url)
    file = tmp_path / "passwords"
    file.write_text(f"127.0.0.1:*:*:{role}:{PASSWORD}\n")
    file.chmod(0o600)
    if way == "variable":
        monkeypatch.setenv("PGPASSFILE", str(file))
        await works(own_url)
    else:
        await works(f"{own_url}&passfile={quote(str(file))}")


async def test_everything_in_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    role, _ = await locked(url)
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(port_of(url)))
    monkeypatch.setenv("PGUSER", role)
    monkeypatch.setenv("PGDATABASE", "postgres")
    monkeypatch.setenv("PGPASSWORD", "wrong")
    refused = await refusal(f"postgresql://?schema={schema_of(url)}")
    assert f"postgresql://127.0.0.1:{port_of(url)}/postgres: the password is wrong" in str(refused)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    await works(f"postgresql://?schema={schema_of(url)}")


async def test_everything_in_a_service_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role, _ = await locked(url)
    lines = ["[shop]", "host=127.0.0.1", f"port={port_of(url)}", f"user={role}", "dbname=postgres"]
    (tmp_path / "services").write_text("\n".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGSERVICE", "shop")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    await works(f"postgresql://?schema={schema_of(url)}")


# ---------------------------------------------------------------------------------------------------------------------
# TLS


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    return made


@asynccontextmanager
async def behind_tls(url: str, authority: trustme.CA, host: str = "127.0.0.1") -> AsyncGenerator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host).configure_cert(context)
    async with tls_to(url, port_of(url), context) as own_url:
        yield own_url


async def test_a_connection_with_tls(url: str, authority: trustme.CA) -> None:
    async with behind_tls(url, authority) as own_url:
        await works(f"{own_url}&sslmode=require")


async def test_a_server_whose_certificate_is_as_it_should_be(url: str, authority: trustme.CA, tmp_path: Path) -> None:
    async with behind_tls(url, authority) as own_url:
        await works(f"{own_url}&sslmode=verify-full&sslrootcert={tmp_path / 'ca.pem'}")


async def test_a_server_that_has_another_name_than_its_certificate(
    url: str, authority: trustme.CA, tmp_path: Path
) -> None:
    async with behind_tls(url, authority, "db.example") as own_url:
        refused = await refusal(f"{own_url}&sslmode=verify-full&sslrootcert={tmp_path / 'ca.pem'}")
        assert isinstance(refused, StoreBroken)
        assert "the host as the certificate does" in str(refused)
        await works(f"{own_url}&sslmode=verify-ca&sslrootcert={tmp_path / 'ca.pem'}")


async def test_a_server_that_nobody_vouches_for(url: str, authority: trustme.CA, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    async with behind_tls(url, authority) as own_url:
        refused = await refusal(f"{own_url}&sslmode=verify-full&sslrootcert={tmp_path / 'other.pem'}")
    assert isinstance(refused, StoreBroken)
    assert "sslrootcert" in str(refused)


async def test_a_server_without_tls(url: str) -> None:
    refused = await refusal(f"{url}&sslmode=require")
    assert isinstance(refused, StoreBroken)
    assert "it has no TLS" in str(refused)


async def test_a_server_that_ends_while_it_is_asked_for_tls_is_asked_again_later() -> None:
    """It may send anything then, which is no answer, and nobody's mistake."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"\0")
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert isinstance(await refusal(f"postgresql://postgres@127.0.0.1:{port}/postgres?lease=2"), StoreBusy)


async def test_a_file_that_is_not_there_is_named(url: str) -> None:
    refused = await refusal(f"{url}&sslmode=verify-full&sslrootcert=/nowhere/ca.pem")
    assert isinstance(refused, StoreBroken)
    assert "sslrootcert=/nowhere/ca.pem cannot be read" in str(refused)


async def test_a_mode_that_there_is_not(url: str) -> None:
    refused = await refusal(f"{url}&sslmode=perhaps")
    assert isinstance(refused, StoreBroken)
    assert "verify-full" in str(refused)


# ---------------------------------------------------------------------------------------------------------------------
# Shut doors


async def test_a_wrong_password(url: str) -> None:
    role, own_url = await locked(url)
    refused = await refusal(own_url.replace(f"{role}@", f"{role}:{quote(PASSWORD[:-1], safe='')}@"))
    assert isinstance(refused, StoreBroken)
    assert f"postgresql://…@127.0.0.1:{port_of(url)}/postgres: the password is wrong" in str(refused)
    assert PASSWORD[:-1] not in str(refused)


async def test_a_database_that_is_not_there(url: str) -> None:
    refused = await refusal(url.replace("/postgres?", "/shop?"))
    assert isinstance(refused, StoreBroken)
    assert "there is no such database; create it" in str(refused)


async def test_a_server_that_is_not_there() -> None:
    refused = await refusal(f"postgresql://me:{quote(PASSWORD, safe='')}@127.0.0.1:{_free_port()}/shop")
    assert isinstance(refused, StoreBusy)
    assert "see that the server runs" in str(refused)


async def test_a_host_that_nobody_knows() -> None:
    refused = await refusal(f"postgresql://me:{quote(PASSWORD, safe='')}@nowhere.invalid/shop")
    assert isinstance(refused, StoreBusy)
    assert "a host that nobody knows" in str(refused)


async def test_a_port_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "many")
    assert isinstance(await refusal("postgresql://127.0.0.1/shop"), StoreBroken)


@pytest.mark.parametrize("url", ["me:se/cret@h/d", "me:12/secret@h/d", "me:se?cret@h/d", "me:se@cret@h/d", "me:secret"])
def test_a_password_that_is_not_written_as_it_must_be_is_not_told(url: str) -> None:
    with pytest.raises(Misuse, match="%40") as caught:
        open_store(f"postgresql://{url}")
    assert "cret" not in f"{caught.value} {vars(caught.value)}"


async def test_no_password_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    role, own_url = await locked(url)
    own_url = own_url.replace(f"{role}@", f"{role}:{quote(PASSWORD, safe='')}@").replace("lease=60", "lease=0.5")
    caplog.set_level(logging.DEBUG)
    async with Engine(own_url, workflows=[], poll_s=0.05) as engine, meddler(url) as other:
        await other.execute(f"alter role {role} nologin")
        ending = f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
        await other.execute(ending)
        while "sign of life" not in caplog.text or "tried again" not in caplog.text:
            await asyncio.sleep(0.01)
        await other.execute(f"alter role {role} login")
        assert PASSWORD not in repr(vars(engine.session.store))
    assert PASSWORD not in caplog.text
    assert quote(PASSWORD, safe="") not in caplog.text


# ---------------------------------------------------------------------------------------------------------------------
# Several hosts


async def test_a_host_that_is_silent_does_not_keep_from_the_next(url: str) -> None:
    """As one does whose machine has lost its power."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    silent = server.sockets[0].getsockname()[1]
    await works(url.replace("@127.0.0.1:", f"@127.0.0.1:{silent},127.0.0.1:").replace("lease=60", "lease=4"))
    server.close()
