"""Sign-in with a token or through a provider, and sign-out."""

from __future__ import annotations

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler

from perdure.dashboard.gate import SIGN_IN, cookie_of, safe_target, secure_mark, session_cookie, session_of
from perdure.dashboard.oidc import COOKIE, PENDING, OidcProvider
from perdure.dashboard.page import form_of
from perdure.dashboard.renderer import HEADERS, PATH, Renderer
from perdure.dashboard.sessions import NoSession, close_session, open_session
from perdure.engine import AnyClient
from perdure.http.access import Access, address_of, reads
from perdure.http.dependencies import Asked, TheAccess, TheClient
from perdure.http.problems import Refused
from perdure.http.rate_limit import Pace

_TRIES_PER_S, _TRIES_BURST = 1, 20
_FORM_BYTES_MAX = 16 * 1024  # Strangers may send this form, so handling it must be cheap.


def handlers_of(renderer: Renderer, provider: OidcProvider | None = None) -> list[ControllerRouterHandler]:
    """Return the handlers for signing in and out. With a provider, people can also sign in through the provider."""
    responses = _Responses(renderer, provider.config.title if provider is not None else "")
    found = [*_with_token(responses), _sign_out()]
    return found if provider is None else [*found, *_through_provider(responses, provider)]


class _Responses:
    """The responses to somebody who signs in, and the limit of failed attempts."""

    def __init__(self, renderer: Renderer, provider_title: str) -> None:
        self._renderer = renderer
        self._provider_title = provider_title
        self._tries = Pace(_TRIES_PER_S, _TRIES_BURST)

    def check_pace(self, request: Asked) -> None:
        """Count a failed attempt. Raises Refused if there were too many failed attempts from this address."""
        if wait_s := self._tries.wait_s(f"address {address_of(request)}"):
            raise Refused("too_many_requests", f"too many tries; try again in {wait_s} s")

    def form(self, status: int, to: str, wrong: str = "") -> Response[str]:
        """Return the page with the form. `wrong` is the message about the last attempt."""
        values = {"title": "Sign in", "caller": None, "to": to, "wrong": wrong, "through": self._provider_title}
        text = self._renderer.page("sign_in", values)
        return Response(text, status_code=status, media_type="text/html", headers=dict(HEADERS))

    def signed_in(self, request: Asked, session: str, to: str) -> Response[None]:
        """Give the browser its session, and redirect it to the page that it asked for."""
        cookie = session_cookie(session, request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": to, "set-cookie": cookie})


def _with_token(responses: _Responses) -> list[ControllerRouterHandler]:
    @get(SIGN_IN)
    async def ask(request: Asked, access: TheAccess) -> Response[str] | Response[None]:
        """Show the form, or sign in with the start-up token. The link that a server prints at its start contains this
        token.
        """
        to = safe_target(request.query_params.get("to", ""))
        shown = request.query_params.get("token", "")
        if shown and not await access.needs_token() and access.is_startup_token(shown):
            return responses.signed_in(request, access.open_startup_session(), to)
        return responses.form(200, to)

    @post(SIGN_IN, status_code=303)
    async def sign_in(request: Asked, client: TheClient, access: TheAccess) -> Response[str] | Response[None]:
        """Open a session for a valid token."""
        form = await form_of(request, _FORM_BYTES_MAX)
        to = safe_target(form.text("to"))
        try:
            session = await _session_for(access, client, form.text("token").strip())
        except NoSession as wrong:
            responses.check_pace(request)
            return responses.form(401, to, str(wrong))
        return responses.signed_in(request, session, to)

    return [ask, sign_in]


async def _session_for(access: Access, client: AnyClient, token: str) -> str:
    if not await access.needs_token() and access.is_startup_token(token):
        return access.open_startup_session()
    return await open_session(client, token)


def _sign_out() -> ControllerRouterHandler:
    @post(f"{PATH}/sign-out", guards=[reads], status_code=303)
    async def sign_out(request: Asked, client: TheClient, access: TheAccess) -> Response[None]:
        """End the session."""
        access.end_startup_session(session_of(request.headers))
        await close_session(client, session_of(request.headers))
        cookie = session_cookie("", request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": SIGN_IN, "set-cookie": cookie})

    return sign_out


def _through_provider(responses: _Responses, provider: OidcProvider) -> list[ControllerRouterHandler]:
    @get(f"{SIGN_IN}/oidc", status_code=303)
    async def begin(request: Asked, client: TheClient) -> Response[str] | Response[None]:
        """Send the browser to the provider. The number of attempts is not limited, because an attempt is cheap.
        Strangers behind the same proxy must not keep others from signing in.
        """
        to = safe_target(request.query_params.get("to", ""))
        try:
            url, kept = await provider.begin(client, to)
        except NoSession as wrong:
            return responses.form(502, to, str(wrong))
        secure = secure_mark(request.headers, request.url.scheme)
        lasts = int(PENDING.total_seconds())
        # SameSite must be Lax, because the browser comes back from a page of the provider.
        cookie = f"{COOKIE}={kept}; Path={SIGN_IN}; Max-Age={lasts}; HttpOnly; SameSite=Lax{secure}"
        return Response(None, status_code=303, headers={"location": url, "set-cookie": cookie})

    @get(f"{SIGN_IN}/oidc/callback", status_code=303)
    async def finish(request: Asked, client: TheClient) -> Response[str] | Response[None]:
        """Open a session for somebody who comes back from the provider."""
        try:
            kept = cookie_of(request.headers, COOKIE)
            session, to = await provider.finish(client, kept, dict(request.query_params.items()))
        except NoSession as wrong:
            responses.check_pace(request)
            return responses.form(401, PATH, str(wrong))
        return responses.signed_in(request, session, safe_target(to))

    return [begin, finish]
