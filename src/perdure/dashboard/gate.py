"""The gate: who may see the pages, and which forms are accepted.

As long as there are no tokens, everybody on this machine may do everything, as with the API. In this case the actor in
the audit trail is "dashboard". Once there are tokens, callers without a session are sent to the sign-in page. A form is
accepted only if the browser says that a page of this server has sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote, urlsplit

from perdure.dashboard.renderer import PATH, Renderer
from perdure.dashboard.sessions import COOKIE, LASTS, find_session
from perdure.http.access import Access, Caller, check_local
from perdure.http.pages import Answer
from perdure.http.problems import OWN, Refused
from perdure.http.scopes import EVERYTHING

ACTOR: Final = "dashboard"  # the actor of changes as long as there are no tokens
SIGN_IN: Final = f"{PATH}/sign-in"
_OPEN: Final = (SIGN_IN, f"{PATH}/static/")
_SAFE: Final = ("GET", "HEAD")
_COOKIE_CHARS_MAX: Final = 8_000
_TARGET_CHARS_MAX: Final = 2_000


class Gate:
    """Identifies the callers of pages."""

    def __init__(self, renderer: Renderer, issuer: str | None = None) -> None:
        self._renderer = renderer
        self._issuer = issuer  # the issuer of the provider through which people sign in, or None

    def covers(self, path: str) -> bool:
        """Whether a path belongs to the dashboard."""
        return path in ("/", PATH) or path.startswith(f"{PATH}/")

    async def identify(
        self, access: Access, scope: MutableMapping[str, Any], headers: Mapping[str, str], peer: str | None
    ) -> Caller | None:
        """Return the caller. Raises Refused. If it is `unauthenticated`, the response leads to the sign-in page."""
        needs_token = await access.needs_token()
        session = session_of(headers)
        if not needs_token and (self._issuer is None or access.is_startup_session(session)):
            check_local(dict(headers), peer)
        if scope["method"] not in _SAFE:
            check_origin(headers)
        if scope["path"].startswith(_OPEN):
            return None
        caller = await self._visitor(access, needs_token, session)
        if caller is None:
            if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate":
                # Somebody followed a link from another site. In this case the browser has not sent the cookie. It sends
                # the cookie after the page has reloaded itself.
                raise Refused("unauthenticated", "", {"refresh": "0"})
            raise Refused("unauthenticated", "sign in with a token")
        return caller

    async def _visitor(self, access: Access, needs_token: bool, session: str) -> Caller | None:
        if needs_token or (self._issuer is not None and not access.is_startup_session(session)):
            return await find_session(access.client, session, self._issuer)
        if access.needs_startup_token and not access.is_startup_session(session):
            return None
        return Caller(ACTOR, EVERYTHING, False)

    def refused(self, refused: Refused, scope: MutableMapping[str, Any]) -> Answer:
        """Return the response to a request that was refused. It is a page with the error, or a redirect to the sign-in
        page.
        """
        if refused.code == "unauthenticated":
            if "refresh" in refused.headers:
                return Answer(
                    status=200, headers={**_HTML, "refresh": "0"}, body=b"<!doctype html><title>Perdure</title>"
                )
            if scope["method"] in _SAFE:
                return Answer(status=303, headers={"location": f"{SIGN_IN}?to={quote(_wanted(scope))}"}, body=b"")
            return Answer(status=303, headers={"location": SIGN_IN}, body=b"")
        status = OWN[refused.code][0]
        caller = scope.get("state", {}).get("caller")
        return self._renderer.error(status, refused.code.replace("_", " "), str(refused), refused.headers, caller)


_HTML: Final = {"content-type": "text/html; charset=utf-8"}


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise Refused unless a page of this server has sent the request. The browser says so in a header that pages
    cannot change. A request without this header is refused too."""
    if headers.get("sec-fetch-site") == "same-origin":
        return
    origin = headers.get("origin", "")
    if "sec-fetch-site" in headers or not origin or origin.partition("://")[2] != headers.get("host"):
        raise Refused("origin_refused", "only a page of this dashboard can send this form")


def session_of(headers: Mapping[str, str]) -> str:
    """Return the id of the session in a request's cookies, or ""."""
    return cookie_of(headers, COOKIE)


def cookie_of(headers: Mapping[str, str], name: str) -> str:
    """Return a cookie of a request, or ""."""
    text = headers.get("cookie", "")
    if len(text) > _COOKIE_CHARS_MAX:
        return ""
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def session_cookie(session_id: str, headers: Mapping[str, str], scheme: str) -> str:
    """Return the cookie with which a browser keeps a session. With an empty id, it makes the browser forget the
    session.
    """
    lasts = int(LASTS.total_seconds()) if session_id else 0
    secure = secure_mark(headers, scheme)
    return f"{COOKIE}={session_id}; Path={PATH}; Max-Age={lasts}; HttpOnly; SameSite=Strict{secure}"


def secure_mark(headers: Mapping[str, str], scheme: str) -> str:
    """Return the attribute `Secure` for a cookie if the page is served over TLS. Otherwise return ""."""
    is_secure = scheme == "https" or headers.get("x-forwarded-proto", "").lower() == "https"
    return "; Secure" if is_secure else ""


def _wanted(scope: MutableMapping[str, Any]) -> str:
    raw: bytes = scope.get("raw_path") or b""
    query: bytes = scope.get("query_string") or b""
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    target = f"{path}?{query.decode('ascii', 'replace')}" if query else path
    return target if len(target) <= _TARGET_CHARS_MAX else PATH


def safe_target(wanted: str) -> str:
    """Return the page to show after signing in. It is the wanted page if that belongs to the dashboard, otherwise the
    first page. The result has only characters that a header can have.
    """
    if wanted.startswith("//"):  # Browsers read the next part as a host, even after more than two slashes.
        return PATH
    try:
        parts = urlsplit(wanted)
    except ValueError:  # The text is not a URL.
        return PATH
    is_ours = not parts.scheme and not parts.netloc and (parts.path == PATH or parts.path.startswith(f"{PATH}/"))
    if not is_ours or "\\" in wanted or wanted.startswith(_OPEN):
        return PATH
    return quote(wanted, safe="/?#&=%:;,+@!$'()*~[]|", errors="replace")


__all__ = ["ACTOR", "SIGN_IN", "Gate", "cookie_of", "safe_target", "secure_mark", "session_cookie", "session_of"]
