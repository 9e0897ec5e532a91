"""Signing in with a token, where there are tokens, and out."""

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


def handlers_of(renderer: Renderer, provider: OidcProvider | None = None) -> list[ControllerRouterHandler]:
    tries = Pace(_TRIES_PER_S, _TRIES_BURST)

    through = provider.config.title if provider is not None else ""

    def check_pace(request: Asked) -> None:
        if wait_s := tries.wait_s(f"address {address_of(request)}"):
            raise Refused("too_many_requests", f"too many tries; try again in {wait_s} s")

    def answer(status: int, to: str, wrong: str = "") -> Response[str]:
        text = renderer.page(
            "sign_in", {"title": "Sign in", "caller": None, "to": to, "wrong": wrong, "through": through}
        )
        return Response(text, status_code=status, media_type="text/html", headers=dict(HEADERS))

    def signed_in(request: Asked, session: str, to: str) -> Response[None]:
        cookie = session_cookie(session, request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": to, "set-cookie": cookie})

    async def session_for(access: Access, client: AnyClient, token: str) -> str:
        if not await access.needs_token() and access.is_startup_token(token):
            return access.open_startup_session()
        return await open_session(client, token)

    @get(SIGN_IN)
    async def ask(request: Asked, access: TheAccess) -> Response[str] | Response[None]:
        """The page to sign in. The link that a server prints when it starts has the start-up token in it."""
        to = safe_target(request.query_params.get("to", ""))
        shown = request.query_params.get("token", "")
        if shown and not await access.needs_token() and access.is_startup_token(shown):
            return signed_in(request, access.open_startup_session(), to)
        return answer(200, to)

    @post(SIGN_IN, status_code=303)
    async def sign_in(request: Asked, client: TheClient, access: TheAccess) -> Response[str] | Response[None]:
        form = await form_of(request)
        to = safe_target(form.text("to"))
        try:
            session = await session_for(access, client, form.text("token").strip())
        except NoSession as wrong:
            check_pace(request)
            return answer(401, to, str(wrong))
        return signed_in(request, session, to)

    @post(f"{PATH}/sign-out", guards=[reads], status_code=303)
    async def sign_out(request: Asked, client: TheClient, access: TheAccess) -> Response[None]:
        access.end_startup_session(session_of(request.headers))
        await close_session(client, session_of(request.headers))
        cookie = session_cookie("", request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": SIGN_IN, "set-cookie": cookie})

    if provider is None:
        return [ask, sign_in, sign_out]

    @get(f"{SIGN_IN}/oidc", status_code=303)
    async def begin(request: Asked, client: TheClient) -> Response[str] | Response[None]:
        """On to the provider, whose page asks who it is. It costs next to nothing, and is not slowed down: strangers
        behind the same proxy must not keep others from signing in."""
        to = safe_target(request.query_params.get("to", ""))
        try:
            url, kept = await provider.begin(client, to)
        except NoSession as wrong:
            return answer(502, to, str(wrong))
        secure = secure_mark(request.headers, request.url.scheme)
        lasts = int(PENDING.total_seconds())
        # Lax: the browser comes back from a page of the provider's.
        cookie = f"{COOKIE}={kept}; Path={SIGN_IN}; Max-Age={lasts}; HttpOnly; SameSite=Lax{secure}"
        return Response(None, status_code=303, headers={"location": url, "set-cookie": cookie})

    @get(f"{SIGN_IN}/oidc/callback", status_code=303)
    async def finish(request: Asked, client: TheClient) -> Response[str] | Response[None]:
        """Back from the provider."""
        try:
            kept = cookie_of(request.headers, COOKIE)
            session, to = await provider.finish(client, kept, dict(request.query_params.items()))
        except NoSession as wrong:
            check_pace(request)
            return answer(401, PATH, str(wrong))
        return signed_in(request, session, safe_target(to))

    return [ask, sign_in, sign_out, begin, finish]
