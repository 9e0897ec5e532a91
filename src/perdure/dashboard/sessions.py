"""Who looks at the pages, where there are tokens: a session for each browser that has shown a valid one.

The browser keeps a random id in a cookie that no script can read and that only pages of ours are sent with; the store
has the id's SHA-256, and who signed in. A session is bound to the secret of the token that was shown: it ends with the
next request once that is revoked, replaced or expired. Sessions that are over are removed in time. The API does not
look at cookies.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Any, Final

from perdure.engine import AnyClient
from perdure.http.access import Caller
from perdure.http.scopes import Grants, parse_scopes
from perdure.http.tokens import find_token, token_at

LASTS: Final = timedelta(hours=12)
COOKIE: Final = "perdure_session"
_ID_BYTES: Final = 32
_ID_CHARS_MAX: Final = 100
_MICROSECOND: Final = timedelta(microseconds=1)

RESTRICTED: Final = (
    "This token is for some workflows or tags only. The pages show everything, so they need one with a scope for "
    "everything; use the API with this one."
)


class NoSession(Exception):
    """Why somebody does not get in, for the page to say."""


async def open_session(client: AnyClient, token: str) -> str:
    """The id of a new session for whoever shows a valid token. Raises NoSession. A crash before it returns leaves a
    session that nobody has the id of."""
    found = await find_token(client, token)
    if found is None:
        raise NoSession("This is no valid token.")
    if found.wrong:
        raise NoSession(f"{found.wrong[:1].upper()}{found.wrong[1:]}.")
    check_pages(found.grants)
    return await _opened(client, found.name, {"token": found.name, "sha256": found.sha256}, LASTS // _MICROSECOND)


def check_pages(grants: Grants) -> None:
    """Raise NoSession unless somebody with these scopes can use the pages."""
    if grants.is_restricted:
        raise NoSession(RESTRICTED)


async def open_foreign_session(client: AnyClient, name: str, issuer: str, scopes: list[str], lasts_us: int) -> str:
    """The id of a new session for somebody whom a provider knows."""
    return await _opened(client, name, {"issuer": issuer, "name": name, "scopes": scopes}, lasts_us)


async def _opened(client: AnyClient, actor: str, body: dict[str, Any], lasts_us: int) -> str:
    await client.credentials.tidy_sessions()
    session_id = secrets.token_urlsafe(_ID_BYTES)
    await client.credentials.put_session(_digest(session_id), body, lasts_us=lasts_us, actor=actor)
    return session_id


async def find_session(client: AnyClient, session_id: str, issuer: str | None = None) -> Caller | None:
    """Who has this session, if it has not ended, and its token is as it was, or the `issuer` is who let them in."""
    if not session_id or len(session_id) > _ID_CHARS_MAX:
        return None
    session = await client.credentials.session(_digest(session_id))
    if session is None:
        return None
    if "issuer" in session.body:
        is_ours = session.body["issuer"] == issuer
        return Caller(session.body["name"], parse_scopes(session.body["scopes"]), True) if is_ours else None
    token = await client.credentials.token(session.body["token"])
    if token is None:
        return None
    sha256 = session.body.get("sha256")
    if sha256 is None:  # An earlier version has opened it, for a version of the token.
        sha256 = token.body["sha256"] if token.version == session.body["version"] else ""
    found = token_at(token, sha256, client.credentials.now())
    if found is None or found.wrong or found.grants.is_restricted:
        return None
    return Caller(found.name, found.grants, True)


async def close_session(client: AnyClient, session_id: str) -> None:
    """End a session, for good, whatever clocks say. A crash leaves it as it was, or ended; a second time changes
    nothing."""
    await client.credentials.end_session(_digest(session_id))


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).hexdigest()


__all__ = [
    "COOKIE",
    "LASTS",
    "NoSession",
    "check_pages",
    "close_session",
    "find_session",
    "open_foreign_session",
    "open_session",
]
