"""The checks that every request passes first: who the caller is, where the request comes from, and how often the caller
sends requests.

The shield surrounds the application and is not part of it. So a caller without a token cannot tell whether a path
exists.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

from perdure.errors import PerdureError
from perdure.http.access import ADDRESS, IDENTIFY, Access, Caller
from perdure.http.addresses import Proxies
from perdure.http.measures import Measures
from perdure.http.pages import Answer, Pages
from perdure.http.problems import MEDIA_TYPE, Problem, Refused, code_of, encoded, own, problem, status_of
from perdure.http.rate_limit import Pace
from perdure.http.streams import Streams

log = logging.getLogger("perdure.http")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]

SLASH: Final = "\ufdd0"  # replaces a slash inside a name; it is not a valid character, so no name contains it
OPEN: Final = ("/health/live", "/health/ready")  # paths that need no token
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
# Litestar keeps the last 1,024 queries in memory, with two texts for each field. So the number of fields is limited.
_QUERY_FIELDS_MAX: Final = 1_100
_STRANGERS_QUERY_BYTES_MAX: Final = 8 * 1024
_STRANGERS_QUERY_FIELDS_MAX: Final = 100
_ELSEWHERE: Final = ("cross-site", "same-site")
_EXPOSED: Final = b"etag, location, retry-after, content-disposition"
# After a browser has used TLS here, this header tells it to use only TLS for a year.
_ONLY_TLS: Final = (b"strict-transport-security", b"max-age=31536000")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class Shield:
    """An ASGI application that checks each request before it passes it to another application. `origins` are the
    origins of pages that may call the API (CORS). `pages` are served in addition to the API, and identify their callers
    themselves.
    """

    def __init__(
        self,
        inner: Asgi,
        *,
        access: Access,
        measures: Measures,
        pace: Pace,
        strangers: Pace,
        streams: Streams,
        origins: frozenset[str],
        pages: Pages | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self._inner = inner
        self._access = access
        self._measures = measures
        self._pace = pace
        self._strangers = strangers
        self._streams = streams
        self._origins = origins
        self._pages = pages
        self._proxies = proxies or Proxies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._inner(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        began = perf_counter()
        statuses: list[int] = []
        origin = headers.get("origin")
        extra = [*_HEADERS, *self._cors(origin)]
        if scope.get("scheme") == "https":
            extra.append(_ONLY_TLS)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                given = {name.lower() for name, _ in message.get("headers", ())}
                added = [(name, value) for name, value in extra if name not in given]
                if b"cache-control" not in given:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and origin in self._origins and "access-control-request-method" in headers:
                await _answer_preflight(headers, sending)
                return
            await self._check(scope, headers, origin)
            await self._inner(scope, receive, sending)
        except Refused as refused:
            if (pages := self._pages_at(scope["path"])) is not None:
                await _send(pages.refused(refused, scope), sending)
            else:
                await _answer(own(refused), refused.headers, sending)
        except PerdureError as error:
            if statuses:
                raise
            await _answer(problem(code_of(type(error)), status_of(type(error)), str(error)), {}, sending)
        finally:
            self._streams.ended(scope.get("state", {}))
            template = str(scope.get("path_template") or "none")
            took = perf_counter() - began
            status = statuses[0] if statuses else 499
            self._measures.count(scope["method"], template, status, took)
            if scope["method"] not in _SAFE and (caller := scope.get("state", {}).get("caller")) is not None:
                log.info("%s sent %s %r: %s", caller.name, scope["method"], scope.get("raw_path"), status)

    async def _check(self, scope: Scope, headers: dict[str, str], origin: str | None) -> None:
        """Check a request. Store the caller, a function that identifies the caller again, and the address for rate
        limits in its scope. Raises Refused.
        """
        peer = scope["client"][0] if scope.get("client") else None
        scope["path"] = _path(scope)
        pages = self._pages_at(scope["path"])
        is_open = scope["path"] in OPEN
        address = self._proxies.client(peer, scope["headers"])

        async def identify() -> Caller | None:
            if pages is not None:
                return await pages.identify(self._access, scope, headers, peer)
            return None if is_open else await self._access.identify(headers, peer)

        try:
            caller = await identify()
        except Refused as refused:
            if refused.code == "unauthenticated" and (pages is None or "cookie" in headers):
                _keep_pace(self._strangers, f"address {address}")  # The request may be an attempt to guess a token.
            raise
        _check_query(scope["query_string"], is_stranger=caller is None)
        if caller is not None:
            self._check_origin(headers, origin, caller)
        scope.setdefault("state", {}).update({"caller": caller, IDENTIFY: identify, ADDRESS: address})
        # A request without a caller is not counted. Otherwise strangers behind the same proxy could use up the requests
        # that others need for signing in.
        if caller is not None:
            _keep_pace(self._pace, f"token {caller.name}" if caller.by_token else f"address {address}")

    def _pages_at(self, path: str) -> Pages | None:
        return self._pages if self._pages is not None and self._pages.covers(path) else None

    def _check_origin(self, headers: dict[str, str], origin: str | None, caller: Caller) -> None:
        """While there are no tokens, raise Refused for a request that a page of another site has sent. Somebody on this
        machine may be looking at that page. With tokens this check is not needed, because a browser never adds a token
        by itself.
        """
        if caller.by_token or origin in self._origins:
            return
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Refused("origin_refused", f"a page of {origin:.200} may not send requests to this server")
        if headers.get("sec-fetch-site") in _ELSEWHERE and headers.get("sec-fetch-mode") != "navigate":
            raise Refused("origin_refused", "a page of another origin may not send requests to this server")

    def _cors(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        if origin is None or origin not in self._origins:
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED),
        ]


def _keep_pace(pace: Pace, who: str) -> None:
    if wait_s := pace.wait_s(who):
        raise Refused("too_many_requests", f"too many requests; try again in {wait_s} s", {"retry-after": str(wait_s)})


def _path(scope: Scope) -> str:
    """Return the path. Slashes inside names are replaced by SLASH. Raises Refused for characters that no name can
    have.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    raw = raw.partition(b"?")[0]
    try:
        parts = [unquote(part, errors="strict") for part in raw.decode("ascii").split("/")]
        query = unquote(scope["query_string"].decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise Refused("invalid_request", "the path or the query is not UTF-8, percent-encoded") from None
    if any("\0" in text or SLASH in text for text in (*parts, query)):
        raise Refused("invalid_request", "the path or the query has a character that no name can have")
    if "" in parts[1:-1]:
        # The router would drop the empty part. Then it would find a page for a path that `covers` has not recognised.
        raise Refused("not_found", "there is nothing at a path with an empty part")
    return "/".join(part.replace("/", SLASH) for part in parts)


def _check_query(query: bytes, *, is_stranger: bool) -> None:
    """Raise Refused for a query that would take much memory, even if it fits into the head of a request."""
    fields_max = _STRANGERS_QUERY_FIELDS_MAX if is_stranger else _QUERY_FIELDS_MAX
    if query.count(b"&") >= fields_max:
        raise Refused("invalid_request", f"the query has more than {fields_max} fields")
    if is_stranger and len(query) > _STRANGERS_QUERY_BYTES_MAX:
        raise Refused("invalid_request", f"the query has more than {_STRANGERS_QUERY_BYTES_MAX} bytes")


async def _answer(found: Problem, headers: dict[str, str], send: Send) -> None:
    body = encoded(found)
    start = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    start += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": found.status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _send(answer: Answer, send: Send) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _answer_preflight(headers: dict[str, str], send: Send) -> None:
    allowed = [
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", headers.get("access-control-request-headers", "").encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": allowed})
    await send({"type": "http.response.body", "body": b""})


__all__ = ["OPEN", "SLASH", "Shield"]
