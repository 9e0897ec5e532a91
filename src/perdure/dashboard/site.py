"""The dashboard as one object for the application of the API: its pages, its files, and its gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from litestar import Response, Router, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from perdure.dashboard.gate import Gate, safe_target
from perdure.dashboard.graphs import Graphs
from perdure.dashboard.oidc import Oidc, OidcProvider
from perdure.dashboard.page import handlers_of
from perdure.dashboard.pages import PAGES, sign_in
from perdure.dashboard.renderer import PATH, MenuItem, Renderer
from perdure.errors import PerdureError
from perdure.http.access import Access, Caller
from perdure.http.dependencies import Asked
from perdure.http.pages import Answer
from perdure.http.problems import HANDLERS, Problem, Refused
from perdure.values.arguments import checked

_FOREVER: Final = "public, max-age=31536000, immutable"


class Dashboard:
    """Pages for `create_app(pages=…)`.

    `graphs` are further graphs to draw. The client itself does not need their code.
    """

    @checked
    def __init__(self, graphs: Iterable[Any] = (), oidc: Oidc | None = None) -> None:
        self._renderer = Renderer(MenuItem(page.name, page.title, page.path) for page in PAGES if page.title)
        self._gate = Gate(self._renderer, None if oidc is None else oidc.issuer)
        known = Graphs(graphs)
        handlers = [handler for page in PAGES for handler in handlers_of(page, self._renderer, known)]
        handlers += sign_in.handlers_of(self._renderer, None if oidc is None else OidcProvider(oidc))
        show_error = _error_handler(self._renderer, self._gate)
        self._handlers: Sequence[ControllerRouterHandler] = [
            Router(
                "/",
                route_handlers=[*handlers, _home(), _files(self._renderer), _nothing()],
                exception_handlers=dict.fromkeys(HANDLERS, show_error),
                include_in_schema=False,
            )
        ]

    @property
    def handlers(self) -> Sequence[ControllerRouterHandler]:
        return self._handlers

    def covers(self, path: str) -> bool:
        return self._gate.covers(path)

    async def identify(
        self, access: Access, scope: MutableMapping[str, Any], headers: Mapping[str, str], peer: str | None
    ) -> Caller | None:
        return await self._gate.identify(access, scope, headers, peer)

    def refused(self, refused: Refused, scope: MutableMapping[str, Any]) -> Answer:
        return self._gate.refused(refused, scope)


def _error_handler(renderer: Renderer, gate: Gate) -> Callable[[Asked, Exception], Response[Any]]:
    """Return a handler that shows errors as pages. The pages have the text and the status of the API's problems. The
    handler is a plain function, because Litestar copies other objects that a router has.
    """

    def show_error(request: Asked, error: Exception) -> Response[Any]:
        if isinstance(error, Refused):
            return _response(gate.refused(error, request.scope))  # type: ignore[arg-type]
        kinds = (PerdureError, HTTPException, RecursionError, Exception)
        answer = HANDLERS[next(kind for kind in kinds if isinstance(error, kind))](request, error)
        problem = msgspec.json.decode(answer.content, type=Problem)
        title = "internal error" if problem.status >= 500 else problem.title
        caller = request.scope["state"].get("caller")
        back = _came_from(request.headers.get("referer", ""))
        return _response(renderer.error(problem.status, title, problem.detail, caller=caller, back=back))

    return show_error


def _came_from(referer: str) -> str:
    """Return the page of the dashboard that the browser comes from, or the first page."""
    try:
        parts = urlsplit(referer)
    except ValueError:  # The text is not a URL.
        return PATH
    return safe_target(parts.path + (f"?{parts.query}" if parts.query else ""))


def _response(answer: Answer) -> Response[Any]:
    headers = {name: value for name, value in answer.headers.items() if name != "content-type"}
    return Response(answer.body, status_code=answer.status, headers=headers, media_type="text/html")


def _home() -> ControllerRouterHandler:
    @get("/", status_code=303)
    async def home() -> Response[None]:
        return Response(None, status_code=303, headers={"location": PATH})

    return home


def _files(renderer: Renderer) -> ControllerRouterHandler:
    @get(f"{PATH}/static/{{edition:str}}/{{name:str}}")
    async def static_file(edition: FromPath[str], name: FromPath[str]) -> Response[bytes]:
        if name not in renderer.files:
            raise Refused("not_found", f"there is no file {name!r:.80}")
        content, kind = renderer.files[name]
        kept = _FOREVER if edition == renderer.edition else "no-store"
        return Response(content, media_type=kind, headers={"cache-control": kept})

    return static_file


def _nothing() -> ControllerRouterHandler:
    @get(f"{PATH}/{{rest:path}}")
    async def nothing(rest: FromPath[str]) -> Response[None]:
        raise Refused("not_found", f"there is no page at {rest!r:.200}")

    return nothing


@checked
def dashboard(graphs: Iterable[Any] = (), *, oidc: Oidc | None = None) -> Dashboard:
    """Return the dashboard, for `serving(…, pages=dashboard())` and `create_app(…, pages=dashboard())`.

    `graphs` are drawn on the pages of their runs. If an engine serves the dashboard, its own graphs are drawn too. With
    `oidc` people can sign in through a provider. In this case everybody must sign in, even as long as there are no
    tokens.
    """
    return Dashboard(graphs, oidc)


__all__ = ["Dashboard", "dashboard"]
