"""Requests that mean harm, or mean nothing: each gets a no that says why, and none an error of the server's."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from litestar._parsers import parse_query_string, parse_url_encoded_form_data

from perdure import Client, workflow
from perdure.dashboard import dashboard
from perdure.engine import AnyClient, Engine
from perdure.http import create_app, make_token, serving
from perdure.http.bodies import has_too_many_values
from perdure.storage.memory import MemoryStore
from perdure.values.canonical import canonical, digest
from tests.http.site import places


@workflow(name="hostile.takes")
async def takes(x: Any) -> None: ...


DIGITS = b"9" * 5_000
JSON = b"content-type: application/json\r\n"
OWN_PAGE = b"sec-fetch-site: same-origin\r\n"
FORM = OWN_PAGE + b"content-type: application/x-www-form-urlencoded\r\n"


def request(line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    head = b"%s HTTP/1.1\r\nHost: localhost\r\nconnection: close\r\n" % line
    return head + headers + b"content-length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def site(client: AnyClient | None = None) -> AsyncGenerator[str]:
    async with (
        client or Client(MemoryStore()) as opened,
        serving(opened, port=0, pages=dashboard(), requests_burst=10_000) as url,
    ):
        yield url


@asynccontextmanager
async def guarded() -> AsyncGenerator[str]:
    """A site with a token, so that whoever shows none is a stranger."""
    async with Client(MemoryStore()) as client:
        await make_token(client, "ops", "admin")
        async with serving(client, port=0, pages=dashboard()) as url:
            yield url


async def answer(url: str, sent: bytes) -> tuple[int, bytes]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(sent)
    told = await reader.read()
    writer.close()
    return int(told.split(b" ", 2)[1]), told


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(b"GET /api/v1/runs?limit=" + DIGITS), 400),
        (request(b"GET /api/v1/runs?cursor=%ff"), 400),
        (request(b"GET /api/v1/runs/x\xff"), 400),
        (request(b"GET /api/v1/runs/%ED%A0%80"), 400),
        (request(b"GET /api/v1/runs?created_from=99999-01-01T00:00:00Z"), 400),
        (request(b"GET /api/v1/runs/x/streams/y?after=" + DIGITS), 400),
        (request(b"GET /api/v1/runs/x/changes", b"last-event-id: " + DIGITS[:900] + b"\r\n"), 404),
        (request(b"POST /api/v1/runs", JSON, b'{"workflow": "x", "input": {"a": ' + DIGITS + b"}}"), 400),
        (request(b"POST /api/v1/runs", JSON, b'{"workflow": "\xff"}'), 400),
        (request(b"POST /api/v1/runs", JSON, b"\xff\xfe"), 400),
        (request(b"POST /api/v1/runs", JSON, b"[" * 5_000), 400),
        (request(b"POST /api/v1/runs", JSON, b"[" * 100_000), 413),
        (request(b"POST /api/v1/runs", JSON, b'{"workflow": "\\ud800"}'), 400),
        (request(b"POST /api/v1/runs", JSON + b"idempotency-key: \xff\r\n", b'{"workflow": "x"}'), 404),
        (request(b"POST /api/v1/tasks:claim", JSON, b'{"queue": "q", "worker": "w", "lease_s": 1e308}'), 400),
        (request(b"POST /api/v1/topics/x/messages", JSON, b'{"message": {}, "delay_s": 1e308}'), 400),
        (request(b"PATCH /api/v1/runs/x", JSON + b"if-match: \xff\r\n", b'{"tags": {}}'), 400),
        (request(b"POST /api/v1/runs", JSON + b"origin: http://[\r\n", b"{}"), 403),
        (request(b"GET /ui/runs?q=since:999999d"), 200),
        (request(b"GET /ui/runs?q=before:999999d"), 200),
        (request(b"GET /ui/runs?q=%ff"), 400),
        (request(b"GET /ui/sign-in?to=//["), 200),
        (request(b"GET /ui/sign-in?to=http://[::1"), 200),
        (request(b"GET /ui/none", b"referer: http://[\r\n"), 404),
        (request(b"GET /ui", b"cookie: \xff=\xfe\r\n"), 200),
        (request(b"POST /ui/sign-in", b"origin: http://[\r\n"), 403),
        (request(b"POST /ui/sign-in", FORM, b"token=%ff&to=//["), 401),
        (request(b"POST /ui/sign-in", OWN_PAGE + b"content-type: \xff\r\n", b"x"), 415),
    ],
    ids=lambda value: value[:60].decode("latin-1") if isinstance(value, bytes) else str(value),
)
async def test_nothing_that_is_sent_is_an_error_of_the_server(
    sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with site() as url:
        assert (await answer(url, sent))[0] == status
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "body",
    [
        b'{"workflow": "a", "workflow": "b"}',
        b'{"workflow": "a", "input": {"x": 1, "x": 2}}',
        b'{"workflow": "a", "input": {"x": [{"y": 1, "\\u0079": 2}]}}',
        b'{"workflow": "a", "input": {"x": 1, "pad": "' + b"p" * 100_000 + b'", "x": 2}}',
    ],
    ids=["top", "deeper", "escaped", "large"],
)
async def test_a_key_that_is_there_twice_is_refused(body: bytes) -> None:
    async with site() as url:
        status, told = await answer(url, request(b"POST /api/v1/runs", JSON, body))
    assert status == 400
    assert b"twice in one object" in told


def body_of(value: bytes) -> bytes:
    return b'{"workflow": "hostile.takes", "id": "1", "input": {"x": [' + value + b"]}}"


MANY = {
    "lists": b",".join([b"[]"] * 20_001),
    "a large body of lists": b",".join([b"[]"] * 1_390_000),
    "objects": b",".join([b"{}"] * 20_001),
    "keys": b"{" + b",".join(b'"%d":1' % n for n in range(33_400)) + b"}",
    "numbers": b",".join([b"1"] * 100_001),
    "texts": b",".join([b'"a"'] * 100_001),
    "lists after a text with quotes": rb'"\\\"\\",' + b",".join([b"[]"] * 20_001),
    "values before a mistake": b",".join([b"[]"] * 20_001) + b"\\",
    "texts that do not end": b'"' * 400_001,
}


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
async def test_a_body_has_so_many_values(value: bytes) -> None:
    """A decoder stops the event loop until it has decoded all of them, also in a thread."""
    async with site() as url:
        status, told = await answer(url, request(b"POST /api/v1/runs", JSON, body_of(value)))
        assert status == 413
        assert b"100,000 values" in told
        form = urlencode({"workflow": "hostile.takes", "input": body_of(value)[:900_000]}).encode()
        status, told = await answer(url, request(b"POST /ui/definitions", FORM, form))
        assert status == 422, told
        assert b"100,000 values" in told


@pytest.mark.parametrize(
    "value",
    [
        b",".join([b"[]"] * 16_000),
        b"{" + b",".join(b'"%d":1' % n for n in range(33_000)) + b"}",
        b",".join([b"1"] * 99_000),
        b'"' + b"[,{" * 500_000 + b'"',
        rb'"\"' + b"[,{" * 500_000 + rb'\\"',
        b'"' + rb"\"" * 500_000 + b'"',
        b'"' + rb"\\" * 500_000 + b'"',
    ],
    ids=["lists", "keys", "numbers", "a text", "a text with a quote", "a text of quotes", "a text of backslashes"],
)
async def test_large_texts_and_lists_of_some_thousand_values_are_accepted(value: bytes) -> None:
    async with site(Engine(MemoryStore(), workflows=[takes])) as url:
        assert (await answer(url, request(b"POST /api/v1/runs", JSON, body_of(value))))[0] == 201
    assert not has_too_many_values(body_of(value))


async def test_inputs_are_compared_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with an id that is taken compares the input with that of the run: in no single call, and slowly."""
    compared: list[threading.Thread] = []

    def watched(value: Any, *, instants: bool = True) -> str:
        compared.append(threading.current_thread())
        return digest(value, instants=instants)

    monkeypatch.setattr("perdure.models.functions.identity.digest", watched)
    async with site(Engine(MemoryStore(), workflows=[takes])) as url:
        for value, status in ((b"1", 201), (b"1.0", 201), (b"2", 409)):
            large = body_of(value + b", 1" * 90_000)
            assert (await answer(url, request(b"POST /api/v1/runs", JSON, large)))[0] == status
    assert compared
    assert threading.main_thread() not in compared


async def test_messages_are_compared_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[threading.Thread] = []

    def watched(value: Any) -> bytes:
        compared.append(threading.current_thread())
        return canonical(value)

    monkeypatch.setattr("perdure.api.emissions.canonical", watched)
    async with site(Engine(MemoryStore(), workflows=[places])) as url:
        for value, status in ((b"1", 201), (b"1.0", 201), (b"2", 409)):
            body = b'{"id": "1", "message": {"x": [' + value + b", 1" * 90_000 + b"]}}"
            assert (await answer(url, request(b"POST /api/v1/topics/orders/messages", JSON, body)))[0] == status
    assert compared
    assert threading.main_thread() not in compared


@pytest.mark.parametrize("path", [b"//ui/sign-in", b"//ui/runs", b"/ui//runs", b"/api//v1/runs", b"//api/v1/runs"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_path_with_an_empty_part_leads_nowhere(path: bytes, method: bytes) -> None:
    async with site() as url:
        assert (await answer(url, request(method + b" " + path, b"origin: http://elsewhere\r\n" + JSON)))[0] == 404


ELSEWHERE = [
    b"origin: http://elsewhere\r\n",
    b"origin: null\r\n",
    b"sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n",
    b"sec-fetch-site: same-site\r\nsec-fetch-mode: cors\r\n",
]


@pytest.mark.parametrize("headers", ELSEWHERE)
async def test_a_page_elsewhere_is_not_answered_where_there_are_no_tokens(headers: bytes) -> None:
    async with site() as url:
        for line in (b"GET /api/v1/runs", b"GET /api/v1/openapi.json", b"GET /metrics"):
            status, told = await answer(url, request(line, headers))
            assert status == 403, line
            assert b"origin_refused" in told
        by_hand = request(b"GET /api/v1/runs", b"sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n")
        assert (await answer(url, by_hand))[0] == 200, "somebody has followed a link"


@pytest.mark.parametrize("headers", ELSEWHERE)
async def test_a_page_elsewhere_does_not_get_the_dashboard_either(headers: bytes) -> None:
    async with Client(MemoryStore()) as client, serving(client, port=0, pages=dashboard()) as url:
        for line in (b"GET /ui", b"GET /ui/runs", b"GET /ui/artifacts/nobody/content"):
            assert (await answer(url, request(line, headers)))[0] == 403, line
        for own in (b"", b"sec-fetch-site: same-origin\r\n", b"sec-fetch-site: none\r\nsec-fetch-mode: navigate\r\n"):
            assert (await answer(url, request(b"GET /ui/runs", own)))[0] == 200
        followed = b"sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n"
        assert (await answer(url, request(b"GET /ui/runs", followed)))[0] == 200


async def test_guessing_sessions_is_slow() -> None:
    async with Client(MemoryStore()) as client:
        await make_token(client, "ops", "admin")
        async with serving(client, port=0, pages=dashboard()) as url:
            guesses = [request(b"GET /ui/runs", b"cookie: perdure_session=guess%d\r\n" % n) for n in range(30)]
            statuses = [(await answer(url, guess))[0] for guess in guesses]
            assert statuses[:20] == [303] * 20
            assert 429 in statuses[20:]
            assert (await answer(url, request(b"GET /ui/runs")))[0] == 303, "who has not guessed is asked to sign in"


@workflow(name="hostile.fails")
async def fails(text: str) -> None:
    raise ValueError(text)


async def test_what_is_logged_cannot_make_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    evil = "r\n2026-11-17 INFO perdure: all is well\x1b[2J\u202e"
    async with Engine(MemoryStore(), workflows=[fails]) as engine:
        run = await engine.start(fails(evil), id=evil)
        with pytest.raises(Exception, match="all is well"):
            await run.result()
        logging.getLogger("perdure").error("run %s: %s", evil, ValueError(evil), exc_info=ValueError(evil))
    formatter = logging.Formatter("%(levelname)s %(message)s")
    for record in caplog.records:
        lines = formatter.format(record).splitlines()
        assert not any(line.startswith("2026-11-17") for line in lines), lines
        assert not any("\x1b" in line or "\u202e" in line for line in lines), lines
    assert any("\\n2026-11-17" in record.getMessage() for record in caplog.records)


# ---------------------------------------------------------------------------------------------------------------------
# What a stranger's request may cost. Litestar's own caches keep what its parsers have read.

FIELDS = b"&".join(b"%d=" % n for n in range(100_000))


async def test_a_stranger_cannot_keep_the_server_busy_with_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(text: str, *, keep_blank_values: bool) -> list[tuple[str, str]]:
        parsed.append(len(text))
        return parse_qsl(text, keep_blank_values=keep_blank_values)

    monkeypatch.setattr("perdure.dashboard.page.parse_qsl", counted)
    async with guarded() as url:
        for body in (FIELDS, b"token=" + b"%41" * 100_000, b"&" * 20_000, b"a" * 20_000):
            # The server closes the connection before it has read all: the answer may be lost in that.
            with suppress(ConnectionError):
                status, told = await answer(url, request(b"POST /ui/sign-in", FORM, body))
                assert status == 413, told[:200]
        assert (await answer(url, request(b"POST /ui/sign-in", FORM, b"a=&" * 3_000)))[0] == 400
        assert parsed == []
        assert (await answer(url, request(b"POST /ui/sign-in", FORM, b"token=x&to=/ui")))[0] == 401
        assert parsed == [14]
    assert parse_url_encoded_form_data.cache_info().currsize == 0, "forms stay in memory, with tokens in them"


async def test_a_stranger_cannot_fill_the_memory_with_queries() -> None:
    parse_query_string.cache_clear()
    async with guarded() as url:
        for path in (b"/ui/sign-in", b"/health/live", b"/ui/static/style.css"):
            for query in (b"&".join(b"%d" % n for n in range(101)), b"to=" + b"x" * 8_200):
                assert (await answer(url, request(b"GET %s?%s" % (path, query))))[0] == 400, path
        assert parse_query_string.cache_info().currsize == 0
        assert (await answer(url, request(b"GET /ui/sign-in?to=/ui/runs")))[0] == 200


async def test_a_query_has_so_many_fields() -> None:
    ids = b"&".join(b"id=%d" % n for n in range(1_000))
    async with site() as url:
        assert (await answer(url, request(b"GET /api/v1/runs:get-many?" + ids)))[0] == 200
        assert (await answer(url, request(b"GET /ui/many-runs?do=cancel&q=&" + ids)))[0] == 200
        assert (await answer(url, request(b"GET /ui/many-runs?do=cancel&q=&" + ids + b"&id=more")))[0] == 400
        assert (await answer(url, request(b"GET /api/v1/runs?" + b"&".join([b"a"] * 1_101))))[0] == 400


async def test_a_long_address_is_not_kept_through_the_sign_in() -> None:
    async with guarded() as url:
        _, told = await answer(url, request(b"GET /ui/runs?q=short"))
        assert b"location: /ui/sign-in?to=/ui/runs%3Fq%3Dshort\r\n" in told
        _, told = await answer(url, request(b"GET /ui/runs?q=" + b"x" * 3_000))
        assert b"location: /ui/sign-in?to=/ui\r\n" in told


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/ui/sign-in", FORM),
        ("POST", "/ui/many-runs", FORM),
        ("POST", "/api/v1/runs", JSON),
        ("PUT", "/api/v1/records/a/b", JSON),
    ],
)
async def test_a_client_that_goes_away_with_half_a_body_is_no_error(
    method: str, path: str, headers: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody can do that as often as they like, and an error would fill the log."""
    arriving = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return arriving.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [line.split(b": ", 1) for line in headers.split(b"\r\n") if line]
    scope: Any = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-length", b"99"), *((name, value) for name, value in pairs)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    async with Client(MemoryStore()) as client:
        await create_app(client, pages=dashboard())(scope, receive, send)
    assert sent[0]["status"] == 400
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_answer_about_many_runs_has_an_address_that_a_browser_follows() -> None:
    async with site() as url:
        form = urlencode([("do", "cancel"), *(("run", f"1:{'中' * 400}{n}") for n in range(60))]).encode()
        status, told = await answer(url, request(b"POST /ui/many-runs", FORM, form))
        assert status == 303
        target = re.search(rb"location: (\S+)", told)
        assert target is not None
        assert len(target[1]) < 8_000
        assert b"count=60" in target[1]
        assert (await answer(url, request(b"GET " + target[1])))[0] == 200
        status, _ = await answer(url, request(b"POST /ui/many-runs", FORM, b"do=cancel&run=" + DIGITS + b":x"))
        assert status == 400
