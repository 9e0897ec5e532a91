"""The application: routes, and what stands around them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp, Receive, Send

from perdure.client import Client
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments
from perdure.http.access import Access
from perdure.http.addresses import Proxies
from perdure.http.bodies import checked as checked_body
from perdure.http.measures import Measures
from perdure.http.pages import Pages
from perdure.http.params import Body
from perdure.http.problems import HANDLERS, Refused
from perdure.http.rate_limit import Pace
from perdure.http.reach import reads_some
from perdure.http.routes import CAPABILITIES, WATCHED
from perdure.http.shield import SLASH, Shield
from perdure.http.streams import Streams
from perdure.ports import Store
from perdure.values.arguments import checked, shown

PATH: Final = "/api/v1"
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_CHANGING: Final = ("POST", "PUT", "PATCH")
_STRANGERS_PER_S, _STRANGERS_BURST = 1, 20
_DOCUMENT: Final = f"{PATH}/openapi.json"
_PAGES_OF_LITESTAR: Final = (PATH, f"{PATH}/{{path}}")  # beside the document it says in HTML that there is nothing


class App:
    """An ASGI application that serves the API, and, beside it, pages that were given.

    `client` is what answers, `access` tells who asks, `streams` are the server-sent events that are open.
    """

    def __init__(self, client: AnyClient, inner: Litestar, shield: Shield, access: Access, streams: Streams) -> None:
        self.client = client
        self.inner = inner
        self.access = access
        self.streams = streams
        self._shield = shield

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._shield(scope, receive, send)

    @property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        _forbid_unknown(self.inner)
        return self.inner.openapi_schema.to_schema()


@checked
def create_app(
    client_or_store: AnyClient | str | Store,
    *,
    pages: Pages | None = None,
    origins: Iterable[str] = (),
    body_bytes_max: int = BODY_BYTES_MAX,
    requests_per_s: float = 100,
    requests_burst: int = 500,
    streams_max: int = 100,
    token_streams_max: int = 50,
    stream_s_max: float = 900,
    poll_s: float = 0.5,
    startup_token: str | None = None,
    trusted_proxies: Iterable[str] = (),
    check_s: float = 5,
) -> App:
    """The API as an ASGI application. A client, or an engine, that is given must be open while it serves; for a store,
    or its URL, it has a client of its own.

    `pages` are served beside the API: `dashboard()` of perdure.dashboard gives some. `origins` are those of pages
    elsewhere that may ask (CORS): none unless given. Each token, or address, may ask `requests_burst` times at once and
    `requests_per_s` times a second. There may be `streams_max` streams, `token_streams_max` of them of one token. A
    stream ends after `stream_s_max`, and looks for changes every `poll_s`. As long as no token was made in the store,
    everybody on this machine may ask for everything, unless they have to show a `startup_token`.

    `trusted_proxies` are addresses and networks of reverse proxies whose X-Forwarded-For says for which address tries
    to get in are counted: none unless given. Every `check_s` it is looked at whether a stream's reader may still read.
    Raises InvalidArguments.
    """
    bounds = {
        "body_bytes_max": body_bytes_max,
        "requests_per_s": requests_per_s,
        "requests_burst": requests_burst,
        "streams_max": streams_max,
        "token_streams_max": token_streams_max,
        "stream_s_max": stream_s_max,
        "poll_s": poll_s,
    }
    for name, bound in bounds.items():
        if bound <= 0:
            raise InvalidArguments(f"create_app(): {name} is more than 0, not {shown(bound)}")
    if startup_token == "":
        raise InvalidArguments(
            "create_app(): an empty startup_token would let everybody in; new_startup_token() makes one"
        )
    is_given = isinstance(client_or_store, AnyClient)
    client = client_or_store if isinstance(client_or_store, AnyClient) else Client(client_or_store)
    measures = Measures()
    streams = Streams(streams_max, token_streams_max, stream_s_max, poll_s, check_s)
    access = Access(client, startup_token)

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncGenerator[None]:
        if is_given:
            yield
            return
        async with client:
            yield

    inner = Litestar(
        [Router(PATH, route_handlers=list(CAPABILITIES)), *WATCHED, *(pages.handlers if pages is not None else ())],
        dependencies={
            "access": Provide(lambda: access, sync_to_thread=False),
            "client": Provide(lambda: client, sync_to_thread=False),
            "measures": Provide(lambda: measures, sync_to_thread=False),
            "streams": Provide(lambda: streams, sync_to_thread=False),
        },
        signature_types=[Access, Client, Measures, Streams],
        exception_handlers=HANDLERS,
        lifespan=[lifespan],
        middleware=[_Named(pages, body_bytes_max)],
        request_max_body_size=body_bytes_max,
        logging_config=None,
        openapi_config=_document(),
        state=State({"client": client}),
    )
    shield = Shield(
        inner,
        access=access,
        measures=measures,
        pace=Pace(requests_per_s, requests_burst),
        strangers=Pace(_STRANGERS_PER_S, _STRANGERS_BURST),
        streams=streams,
        origins=frozenset(origins),
        pages=pages,
        proxies=Proxies(trusted_proxies),
    )
    return App(client, inner, shield, access, streams)


def _forbid_unknown(app: Litestar) -> None:
    """Say of bodies that they may have no other fields than those in the document: Litestar leaves that out."""
    schemas = app.openapi_schema.components.schemas or {}
    for body in Body.__subclasses__():
        if (schema := schemas.get(body.__name__)) is not None:
            schema.additional_properties = False


def _document() -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer", description="An API token: perdure_<name>_<secret>.")
    return OpenAPIConfig(
        title="Perdure",
        version="1",
        description="Durable workflows: start, watch and steer runs. Errors are problems (RFC 9457) with stable codes.",
        use_handler_docstrings=True,
        components=Components(security_schemes={"token": bearer}),
        security=[{"token": []}],
        openapi_router=Router(PATH, route_handlers=[], guards=[reads_some], include_in_schema=False),
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
    )


class _Named:
    """Once a request has found its route: give slashes in names back, and see that what changes something is JSON. A
    form of another page cannot send that without asking first; pages of ours see themselves that it is not another's.
    """

    def __init__(self, pages: Pages | None, body_bytes_max: int) -> None:
        self._pages = pages
        self._body_bytes_max = body_bytes_max

    def __call__(self, app: ASGIApp) -> ASGIApp:
        async def named(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                if self._is_json(scope):
                    receive = await checked_body(receive, self._body_bytes_max)
                scope["path"] = scope["path"].replace(SLASH, "%2F")
                # A new mapping: the router keeps the old one for the next request to the same path.
                scope["path_params"] = {
                    name: value.replace(SLASH, "/") if isinstance(value, str) else value
                    for name, value in scope["path_params"].items()
                }
            await app(scope, receive, send)

        return named

    def _is_json(self, scope: Any) -> bool:
        """Whether a request brings JSON. Raises Refused for one that changes something and does not."""
        if scope["path_template"] in _PAGES_OF_LITESTAR:
            raise Refused("not_found", "there is nothing at this path; /api/v1/openapi.json has what there is")
        if scope["path_template"] == _DOCUMENT:
            _forbid_unknown(scope["litestar_app"])
        if scope["method"] not in _CHANGING or (self._pages is not None and self._pages.covers(scope["path"])):
            return False
        given = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
        if given != b"application/json":
            raise Refused("unsupported_media_type", "send JSON, with Content-Type: application/json")
        return True


__all__ = ["BODY_BYTES_MAX", "PATH", "App", "create_app"]
