"""The application: the routes, and the layers around them.

The routes are in routes/, one module per noun. problems.py has the errors, and preconditions.py has If-Match.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme, Tag
from litestar.types import ASGIApp, Receive, Send
from msgspec import Struct

from perdure.client import Client
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments
from perdure.http.access import Access
from perdure.http.addresses import Proxies
from perdure.http.bodies import VALUES_MAX
from perdure.http.bodies import checked as checked_body
from perdure.http.measures import Measures
from perdure.http.pages import Pages
from perdure.http.params import Body
from perdure.http.problems import HANDLERS, Refused
from perdure.http.rate_limit import Pace
from perdure.http.request_checks import SLASH, Shield
from perdure.http.routes import MONITORED, ROUTERS, TAGS
from perdure.http.streams import Streams
from perdure.http.visible_runs import reads_some
from perdure.ports import Store
from perdure.values.arguments import checked, shown

PATH: Final = "/api/v1"
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_CHANGING: Final = ("POST", "PUT", "PATCH")
_STRANGERS_PER_S, _STRANGERS_BURST = 1, 20
_DOCUMENT: Final = f"{PATH}/openapi.json"
_PAGES_OF_LITESTAR: Final = (PATH, f"{PATH}/{{path}}")  # HTML pages that Litestar adds to the OpenAPI document


class App:
    """An ASGI application that serves the API and, if it has any, pages.

    `client` carries out the requests. `access` identifies callers. `streams` has the open streams of server-sent
    events.
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
        """Return the OpenAPI document."""
        _forbid_unknown(self.inner)
        return self.inner.openapi_schema.to_schema()


class _Parts(Struct, frozen=True, kw_only=True):
    """The dependencies of the route handlers."""

    client: AnyClient
    access: Access
    measures: Measures
    streams: Streams


@checked
def create_app(
    client_or_store: AnyClient | str | Store,
    *,
    pages: Pages | None = None,
    origins: Iterable[str] = (),
    body_bytes_max: int = BODY_BYTES_MAX,
    body_values_max: int = VALUES_MAX,
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
    """Return the API as an ASGI application.

    If you pass a client or an engine, it must stay open while the application serves. If you pass a store or its URL,
    the application opens a client of its own.

    `pages` are served beside the API, such as those of `perdure.dashboard.dashboard()`. `origins` are the origins of
    pages that may call the API (CORS); by default there are none. A JSON body has at most `body_bytes_max` bytes and
    `body_values_max` values; a list or an object counts as five, a key as two. Each token, or each address without a
    token, may send `requests_burst` requests at once, and `requests_per_s` per second after that. At most `streams_max`
    streams may be open at once, at most `token_streams_max` of them for one token. A stream ends after `stream_s_max`
    seconds, and looks for changes every `poll_s` seconds. While the store has no token, every caller on this machine
    may do everything. If `startup_token` is set, these callers must send it.

    `trusted_proxies` are the addresses and networks of reverse proxies. Behind a trusted proxy, failed sign-ins are
    counted for the address in its X-Forwarded-For header. By default no proxy is trusted. Every `check_s` seconds a
    stream checks whether its reader may still read. Raises InvalidArguments.
    """
    bounds = {
        "body_bytes_max": body_bytes_max,
        "body_values_max": body_values_max,
        "requests_per_s": requests_per_s,
        "requests_burst": requests_burst,
        "streams_max": streams_max,
        "token_streams_max": token_streams_max,
        "stream_s_max": stream_s_max,
        "poll_s": poll_s,
    }
    _check(bounds, startup_token)
    is_given = isinstance(client_or_store, AnyClient)
    client = client_or_store if isinstance(client_or_store, AnyClient) else Client(client_or_store)
    parts = _Parts(
        client=client,
        access=Access(client, startup_token),
        measures=Measures(),
        streams=Streams(streams_max, token_streams_max, stream_s_max, poll_s, check_s),
    )
    inner = _routes(parts, pages, body_bytes_max, body_values_max, is_given=is_given)
    shield = Shield(
        inner,
        access=parts.access,
        measures=parts.measures,
        pace=Pace(requests_per_s, requests_burst),
        strangers=Pace(_STRANGERS_PER_S, _STRANGERS_BURST),
        streams=parts.streams,
        origins=frozenset(origins),
        pages=pages,
        proxies=Proxies(trusted_proxies),
    )
    return App(client, inner, shield, parts.access, parts.streams)


def _check(bounds: dict[str, float], startup_token: str | None) -> None:
    for name, bound in bounds.items():
        if bound <= 0:
            raise InvalidArguments(f"create_app(): {name} must be more than 0, not {shown(bound)}")
    if startup_token == "":
        raise InvalidArguments(
            "create_app(): an empty startup_token would let everybody in; new_startup_token() makes one"
        )


def _routes(
    parts: _Parts, pages: Pages | None, body_bytes_max: int, body_values_max: int, *, is_given: bool
) -> Litestar:
    """Return the application without its shield: routes, pages, and the dependencies of their handlers."""

    def lifespan(_app: Litestar) -> AbstractAsyncContextManager[None]:
        return _opened(parts.client, is_given=is_given)

    return Litestar(
        [Router(PATH, route_handlers=list(ROUTERS)), *MONITORED, *(pages.handlers if pages is not None else ())],
        dependencies={
            "access": Provide(lambda: parts.access, sync_to_thread=False),
            "client": Provide(lambda: parts.client, sync_to_thread=False),
            "measures": Provide(lambda: parts.measures, sync_to_thread=False),
            "streams": Provide(lambda: parts.streams, sync_to_thread=False),
        },
        signature_types=[Access, Client, Measures, Streams],
        exception_handlers=HANDLERS,
        lifespan=[lifespan],
        middleware=[_Named(pages, body_bytes_max, body_values_max)],
        request_max_body_size=body_bytes_max,
        logging_config=None,
        openapi_config=_document(),
        state=State({"client": parts.client}),
    )


@asynccontextmanager
async def _opened(client: AnyClient, *, is_given: bool) -> AsyncGenerator[None]:
    """Keep the application's own client open while the application serves. If a client was passed in, its owner opens
    and closes it.
    """
    if is_given:
        yield
        return
    async with client:
        yield


def _forbid_unknown(app: Litestar) -> None:
    """State in the OpenAPI document that bodies may have no other fields, because Litestar does not."""
    schemas = app.openapi_schema.components.schemas or {}
    for body in _bodies(Body):
        if (schema := schemas.get(body.__name__)) is not None:
            schema.additional_properties = False


def _bodies(above: type[Body]) -> list[type[Body]]:
    return [one for below in above.__subclasses__() for one in (below, *_bodies(below))]


def _document() -> OpenAPIConfig:
    bearer = SecurityScheme(type="http", scheme="bearer", description="An API token: perdure_<name>_<secret>.")
    return OpenAPIConfig(
        title="Perdure",
        version="1",
        description="Durable workflows: start, watch and change runs. Errors have stable codes (RFC 9457).",
        use_handler_docstrings=True,
        components=Components(security_schemes={"token": bearer}),
        security=[{"token": []}],
        tags=[Tag(name=name, description=about) for name, about in TAGS.items()],
        openapi_router=Router(PATH, route_handlers=[], guards=[reads_some], include_in_schema=False),
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
    )


class _Named:
    """A middleware for requests whose route was found. It restores slashes inside names. It refuses changes whose body
    is not JSON. A page of another site cannot send JSON without a CORS preflight. Pages check the origin of their forms
    themselves.
    """

    def __init__(self, pages: Pages | None, body_bytes_max: int, body_values_max: int) -> None:
        self._pages = pages
        self._body_bytes_max = body_bytes_max
        self._body_values_max = body_values_max

    def __call__(self, app: ASGIApp) -> ASGIApp:
        async def named(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                if self._is_json(scope):
                    receive = await checked_body(receive, self._body_bytes_max, self._body_values_max)
                scope["path"] = scope["path"].replace(SLASH, "%2F")
                # This must be a new mapping, because the router uses the old mapping again for the next request to the
                # same path.
                scope["path_params"] = {
                    name: value.replace(SLASH, "/") if isinstance(value, str) else value
                    for name, value in scope["path_params"].items()
                }
            await app(scope, receive, send)

        return named

    def _is_json(self, scope: Any) -> bool:
        """Return whether a request must have a JSON body. Raises Refused for a change whose body is not JSON."""
        if scope["path_template"] in _PAGES_OF_LITESTAR:
            raise Refused("not_found", "there is nothing at this path; /api/v1/openapi.json has all paths")
        if scope["path_template"] == _DOCUMENT:
            _forbid_unknown(scope["litestar_app"])
        if scope["method"] not in _CHANGING or (self._pages is not None and self._pages.covers(scope["path"])):
            return False
        given = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
        if given != b"application/json":
            raise Refused("unsupported_media_type", "send JSON, with Content-Type: application/json")
        return True


__all__ = ["BODY_BYTES_MAX", "PATH", "App", "create_app"]
