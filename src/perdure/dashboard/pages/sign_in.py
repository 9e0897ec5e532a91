"""Signing in with a token, where there are tokens, and out."""

from __future__ import annotations

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler

from perdure.client import Client
from perdure.dashboard.gate import SIGN_IN, safe_target, session_cookie, session_of
from perdure.dashboard.page import form_of
from perdure.dashboard.rendering import HEADERS, PATH, Renderer
from perdure.dashboard.sessions import NoSession, close_session, open_session
from perdure.http.access import Access, reads
from perdure.http.given import Asked, TheAccess, TheClient
from perdure.http.pace import Pace
from perdure.http.problems import Refused

_TRIES_PER_S, _TRIES_BURST = 1, 20


def handlers_of(renderer: Renderer) -> list[ControllerRouterHandler]:
    tries = Pace(_TRIES_PER_S, _TRIES_BURST)

    def answer(status: int, to: str, wrong: str = "") -> Response[str]:
        text = renderer.page("sign_in", {"title": "Sign in", "caller": None, "to": to, "wrong": wrong})
        return Response(text, status_code=status, media_type="text/html", headers=dict(HEADERS))

    def signed_in(request: Asked, session: str, to: str) -> Response[None]:
        cookie = session_cookie(session, request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": to, "set-cookie": cookie})

    async def session_for(access: Access, client: Client, token: str) -> str:
        if not await access.needs_token() and access.is_startup_token(token):
            return access.startup_session
        return await open_session(client, token)

    @get(SIGN_IN)
    async def ask(request: Asked, access: TheAccess) -> Response[str] | Response[None]:
        """The page to sign in. The link that a server prints when it starts has the start-up token in it."""
        to = safe_target(request.query_params.get("to", ""))
        shown = request.query_params.get("token", "")
        if shown and not await access.needs_token() and access.is_startup_token(shown):
            return signed_in(request, access.startup_session, to)
        return answer(200, to)

    @post(SIGN_IN, status_code=303)
    async def sign_in(request: Asked, client: TheClient, access: TheAccess) -> Response[str] | Response[None]:
        form = await form_of(request)
        to = safe_target(form.text("to"))
        try:
            session = await session_for(access, client, form.text("token").strip())
        except NoSession as wrong:
            peer = request.client.host if request.client is not None else None
            if wait_s := tries.wait_s(f"address {peer}"):
                raise Refused("too_many_requests", f"too many tries; try again in {wait_s} s") from None
            return answer(401, to, str(wrong))
        return signed_in(request, session, to)

    @post(f"{PATH}/sign-out", guards=[reads], status_code=303)
    async def sign_out(request: Asked, client: TheClient) -> Response[None]:
        await close_session(client, session_of(request.headers))
        cookie = session_cookie("", request.headers, request.url.scheme)
        return Response(None, status_code=303, headers={"location": SIGN_IN, "set-cookie": cookie})

    return [ask, sign_in, sign_out]
