"""Who looks at the pages, where there are tokens: a session for each browser that has shown a valid one.

The browser keeps a random id in a cookie that no script can read and that only pages of ours are sent with; the store
has the id's SHA-256, in a record that also says who signed in, and when. A session is bound to its token as it was when
it was shown: revoking or replacing the token ends it with the next request. The API does not look at cookies.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.client import Client
from perdure.errors import RecordNotFound
from perdure.http.access import Caller
from perdure.http.tokens import KIND as TOKEN
from perdure.http.tokens import Scope, valid_record

KIND: Final = "perdure.dashboard-session"
LASTS: Final = timedelta(hours=12)
COOKIE: Final = "perdure_session"
_ID_BYTES: Final = 32
_ID_CHARS_MAX: Final = 100


async def open_session(client: Client, token: str) -> str | None:
    """The id of a new session for whoever shows a valid token; None if it is not one. A crash before it returns leaves
    a session that nobody has the id of."""
    found = await valid_record(client, token)
    if found is None:
        return None
    session_id = secrets.token_urlsafe(_ID_BYTES)
    until = datetime.now(UTC) + LASTS
    body = {"token": found.name, "version": found.version, "until": until.isoformat()}
    await client.put_record(KIND, _digest(session_id), body, actor=found.name)
    return session_id


async def find_session(client: Client, session_id: str) -> Caller | None:
    """Who has this session, if it has not ended, and its token is as it was."""
    if not session_id or len(session_id) > _ID_CHARS_MAX:
        return None
    try:
        body = (await client.record(KIND, _digest(session_id))).body
        token = await client.record(TOKEN, body["token"])
    except RecordNotFound:
        return None
    is_over = body.get("signed_out", False) or datetime.fromisoformat(body["until"]) <= datetime.now(UTC)
    if is_over or token.body["revoked"] or token.version != body["version"]:
        return None
    return Caller(token.name, Scope(token.body["scope"]), True)


async def close_session(client: Client, session_id: str, actor: str) -> None:
    """End a session, for good, whatever clocks say. A crash leaves it as it was, or ended; a second time changes
    nothing."""
    name = _digest(session_id)
    try:
        body = (await client.record(KIND, name)).body
    except RecordNotFound:
        return
    await client.put_record(KIND, name, {**body, "signed_out": True}, actor=actor)


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).hexdigest()


__all__ = ["COOKIE", "LASTS", "close_session", "find_session", "open_session"]
