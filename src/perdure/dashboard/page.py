"""A page consists of a function that finds the values to show, a template of the same name, and actions.

The same function and template also update an open page. If the address of a page is requested as a stream of events,
the server sends those regions of the page that have changed. The id of each event has digests of the regions that the
reader has seen. So any server can continue after an interruption, and servers keep no state for readers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar import Request, Response, get, post
from litestar.exceptions import InternalServerException
from litestar.handlers import BaseRouteHandler
from litestar.response import Stream
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from perdure.dashboard.graphs import Graphs
from perdure.dashboard.renderer import HEADERS, PATH, Renderer
from perdure.engine import AnyClient
from perdure.errors import PerdureError
from perdure.http.access import Caller, caller_of, operates, reads
from perdure.http.bodies import GONE
from perdure.http.dependencies import Asked, TheClient, TheStreams
from perdure.http.problems import Refused
from perdure.http.scopes import Scope
from perdure.http.streams import MEDIA_TYPE, StreamEvent, Streams, looked, may_still_read

log = logging.getLogger("perdure.http")

_MARK_BYTES: Final = 6
_FORM_BYTES_MAX: Final = 4 * 1024 * 1024
_FIELDS_MAX: Final = 2_000
_TEXT_CHARS_MAX: Final = 1_000_000
_AT_ONCE_BYTES: Final = 64 * 1024  # A larger form is parsed in a thread.


class Form:
    """The fields of a form that somebody has sent. A missing field is empty."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return the value of a field."""
        return next(iter(self._fields.get(name, ())), "")

    def texts(self, name: str) -> list[str]:
        """Return all values of a field that a form can have several times."""
        return list(self._fields.get(name, ()))

    def has(self, name: str) -> bool:
        """Whether the form has a field."""
        return name in self._fields

    def number(self, name: str) -> int:
        """Return the number in a field. Raises Refused."""
        text = self.text(name)
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise Refused("invalid_request", f"{name} must be a number, not {text!r:.40}")
        return int(text)


class Visit:
    """A request for a page. It has the caller, and the parameters of the page's address."""

    def __init__(
        self, request: Request[Any, Any, Any], client: AnyClient, graphs: Graphs, given: Form | None = None
    ) -> None:
        self.client = client
        self.given = given  # the form that was sent and refused
        self.graphs = graphs
        self._request = request

    @property
    def asking(self) -> Request[Any, Any, Any]:
        """The request itself."""
        return self._request

    @property
    def caller(self) -> Caller:
        """The caller of the request."""
        return caller_of(self._request)

    @property
    def may_change(self) -> bool:
        """Whether the caller may make changes."""
        return self.caller.grants.includes(Scope.OPERATE)

    def part(self, name: str) -> str:
        """Return a part of the path."""
        found: str = self._request.path_params[name]
        return found

    def asked_all(self, name: str) -> list[str]:
        """Return all values of a parameter of the address."""
        return self._request.query_params.getall(name, [])

    def asked(self, name: str) -> str:
        """Return the value of a parameter of the address, or an empty text."""
        return self._request.query_params.get(name, "")


class Wrong(Exception):
    """A form that cannot be accepted. The page is shown again, with the values that were typed and with this
    message.
    """


Shown = dict[str, Any]
Show = Callable[[Visit], Awaitable[Shown]]
Do = Callable[[Visit, Form], Awaitable[str]]


class Action(Struct, frozen=True):
    """A form that makes a change. It has the path to which it is sent, and the function that makes the change. The
    function returns the page to show next.
    """

    path: str
    do: Do


class Page(Struct, frozen=True, kw_only=True):
    """A page at a path below the path of the dashboard. A page with a `title` is in the menu. `extra` has further
    handlers.
    """

    name: str
    path: str
    show: Show
    title: str = ""
    menu: str = ""  # the menu item to which the page belongs, if the page has no title
    actions: Sequence[Action] = ()
    extra: Sequence[ControllerRouterHandler] = ()


def handlers_of(page: Page, renderer: Renderer, graphs: Graphs) -> list[ControllerRouterHandler]:
    """Return the handlers of a page and its actions."""
    return [
        _shown(page, renderer, graphs),
        *(_done(page, action, renderer, graphs) for action in page.actions),
        *page.extra,
    ]


def _shown(page: Page, renderer: Renderer, graphs: Graphs) -> BaseRouteHandler:
    @get(f"{PATH}{page.path}", guards=[reads], include_in_schema=False, opt={"page": page.name})
    async def shown(request: Asked, client: TheClient, streams: TheStreams) -> Response[Any]:
        visit = Visit(request, client, graphs)
        found = await _values(page, visit)
        if MEDIA_TYPE in request.headers.get("accept", ""):
            return _live(page, renderer, visit, streams, request.headers.get("last-event-id") or visit.asked("seen"))
        seen = marks(renderer.regions(page.name, found))
        live = {"seen": ".".join(seen.values()), "is_live": True} if seen else {}
        text = renderer.page(page.name, {**found, **live})
        return Response(text, media_type="text/html", headers=dict(HEADERS))

    return shown


async def _values(page: Page, visit: Visit) -> Shown:
    return {
        **await page.show(visit),
        "caller": visit.caller,
        "may_change": visit.may_change,
        "said": visit.asked("said"),
        "wrong": "",
        "place": page.menu or page.name,
    }


def _live(page: Page, renderer: Renderer, visit: Visit, streams: Streams, seen: str) -> Stream:
    known = seen.split(".")
    loop = asyncio.get_running_loop()

    async def look() -> list[StreamEvent] | None:
        nonlocal known
        began = loop.time()
        try:
            if not await may_still_read(visit.asking):
                return None
            regions = renderer.regions(page.name, await _values(page, visit))
        except (PerdureError, Refused) as error:
            log.info("the live updates of a page end: %s", error)
            return None
        # An open page must not keep the store busy. It uses the store for at most a quarter of the time.
        await asyncio.sleep(3 * (loop.time() - began))
        now = marks(regions)
        new = [
            StreamEvent(event="region", data={"name": name, "html": html})
            for name, html in regions.items()
            if now[name] not in known
        ]
        known = list(now.values())
        if new:
            new[-1] = StreamEvent(event="region", data=new[-1].data, id=".".join(known))
        return new

    return streams.response(looked(look, streams.poll_s), visit.asking)


def marks(regions: Mapping[str, str]) -> dict[str, str]:
    """Return a short digest of each region. It changes with the content of the region."""
    return {name: _mark(f"{name}\0{html}") for name, html in regions.items()}


def _mark(text: str) -> str:
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=_MARK_BYTES).digest()
    return urlsafe_b64encode(digest).decode()


def _done(page: Page, action: Action, renderer: Renderer, graphs: Graphs) -> BaseRouteHandler:
    @post(f"{PATH}{action.path}", guards=[operates], include_in_schema=False, status_code=303)
    async def done(request: Asked, client: TheClient) -> Response[Any]:
        form = await form_of(request)
        visit = Visit(request, client, graphs, form)
        try:
            target = await action.do(visit, form)
        except Wrong as wrong:
            text = renderer.page(page.name, {**await _values(page, visit), "wrong": str(wrong)})
            return Response(text, status_code=422, media_type="text/html", headers=dict(HEADERS))
        return Response(None, status_code=303, headers={"location": target})

    return done


async def form_of(request: Asked, bytes_max: int = _FORM_BYTES_MAX) -> Form:
    """Return the form in a request. Raises Refused if the request has no form, or if the form is too large.

    Litestar's `request.form()` is not used. It does not limit the number of fields. It also keeps the last 1,024 forms
    in memory, with the tokens in them.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused("unsupported_media_type", "this path accepts forms only")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > bytes_max:
                raise Refused("body_too_large", f"the form has more than {bytes_max} bytes")
    except InternalServerException:  # Litestar raises this error if the client has disconnected.
        raise Refused("invalid_request", GONE) from None
    if body.count(b"&") >= _FIELDS_MAX:
        raise Refused("invalid_request", f"the form has more than {_FIELDS_MAX} fields")
    return _parsed(bytes(body)) if len(body) <= _AT_ONCE_BYTES else await asyncio.to_thread(_parsed, bytes(body))


def _parsed(body: bytes) -> Form:
    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(body.decode("latin-1"), keep_blank_values=True):
        if "\0" in value or len(value) > _TEXT_CHARS_MAX:
            raise Refused("invalid_request", f"the field {name!r:.80} is too long, or is not plain text")
        fields.setdefault(name, []).append(value)
    return Form(fields)


__all__ = ["Action", "Form", "Page", "Shown", "Visit", "Wrong", "form_of", "handlers_of"]
