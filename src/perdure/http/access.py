"""Who asks, and whether they may: by token, or, as long as no token was ever made, from this machine only.

Until then a server may have a start-up token, which is known only to whoever started it: a reverse proxy on this
machine would otherwise make everybody's requests come from it.

The dashboard's pages are guarded by the same functions: `Access.identify` tells who asks, `reads`, `operates` and
`administers` are guards for handlers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from time import monotonic
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from msgspec import Struct

from perdure.engine import AnyClient
from perdure.http.problems import Refused
from perdure.http.scopes import EVERYTHING, Grants, Scope
from perdure.http.tokens import find_token, has_tokens

NOBODY: Final = "http"  # who changes something where there are no tokens
NOTED_EVERY_S: Final = 60.0
STARTUP_SESSION_S: Final = 12 * 3600.0
_STARTUP_SESSIONS_MAX: Final = 100
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Caller(Struct, frozen=True):
    """Who asks: the name of a token, which is the actor in the audit trail, and what it is good for."""

    name: str
    grants: Grants
    by_token: bool


STARTUP: Final = "perdure_startup_"


def new_startup_token() -> str:
    """A token for one server, until it ends or the first token is made in its store."""
    return STARTUP + secrets.token_urlsafe(32)


class Access:
    """Tells who asks. Once there is a token, everybody needs one, in this process until it ends."""

    def __init__(self, client: AnyClient, startup_token: str | None = None) -> None:
        self.client = client
        self._needs_token = False
        self._startup_token = startup_token
        self._startup_sessions: dict[bytes, float] = {}  # until when, by the SHA-256 of their ids; the oldest first
        self._noted_at: dict[str, float] = {}  # when uses of tokens were last written, by name

    async def needs_token(self) -> bool:
        if not self._needs_token:
            self._needs_token = await has_tokens(self.client)
        return self._needs_token

    async def identify(self, headers: dict[str, str], peer: str | None) -> Caller:
        """Who sent a request with these headers, from this address (None: over a socket that has none). Raises
        Refused. Cookies are not looked at, so no page of somebody else's can ask in a visitor's name."""
        if await self.needs_token():
            return await self._by_token(_bearer(headers))
        check_local(headers, peer)
        if self._startup_token is not None and not self.is_startup_token(_bearer(headers)):
            raise _unauthenticated("send the start-up token that the server has printed: Authorization: Bearer …")
        return Caller(NOBODY, EVERYTHING, False)

    @property
    def needs_startup_token(self) -> bool:
        """Whether somebody on this machine has to show the start-up token, where there is no other."""
        return self._startup_token is not None

    def is_startup_token(self, shown: str) -> bool:
        return self._startup_token is not None and _is_same(self._startup_token, shown)

    # Sessions of whoever has shown the start-up token. They end with this process, or earlier, so it alone knows them.

    def open_startup_session(self) -> str:
        """What the browser of whoever has shown the start-up token keeps instead of it."""
        session = secrets.token_urlsafe(32)
        self._startup_sessions[_digest(session)] = monotonic() + STARTUP_SESSION_S
        if len(self._startup_sessions) > _STARTUP_SESSIONS_MAX:
            del self._startup_sessions[next(iter(self._startup_sessions))]
        return session

    def is_startup_session(self, shown: str) -> bool:
        return self._startup_sessions.get(_digest(shown), 0.0) > monotonic()

    def end_startup_session(self, shown: str) -> None:
        """Forget a session; one that there is not is none already."""
        self._startup_sessions.pop(_digest(shown), None)

    async def _by_token(self, token: str) -> Caller:
        found = await find_token(self.client, token) if token else None
        if found is None:
            raise _unauthenticated("send a valid token: Authorization: Bearer perdure_…")
        if found.wrong:
            raise _unauthenticated(found.wrong)
        await self.note_use(found.name)
        return Caller(found.name, found.grants, True)

    async def note_use(self, name: str) -> None:
        """Have the store say when a token was last used, to the minute: a write for each request would be too many."""
        now = monotonic()
        if now - self._noted_at.get(name, -NOTED_EVERY_S) >= NOTED_EVERY_S:
            self._noted_at[name] = now
            await self.client.credentials.note_use(name)


def _bearer(headers: dict[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _digest(shown: str) -> bytes:
    return hashlib.sha256(shown.encode(errors="surrogateescape")).digest()


def _is_same(known: str, shown: str) -> bool:
    return hmac.compare_digest(known.encode(), shown.encode(errors="surrogateescape"))


def _unauthenticated(detail: str) -> Refused:
    return Refused("unauthenticated", detail, {"www-authenticate": 'Bearer realm="perdure"'})


def check_local(headers: dict[str, str], peer: str | None) -> None:
    """Raise Refused unless a request comes from this machine, was meant for it, and was not passed on by a proxy. A
    name that somebody has pointed at this machine (DNS rebinding) is not one of its own."""
    is_passed_on = any(name in headers for name in _FORWARDED)
    if (peer is not None and not is_loopback(peer)) or is_passed_on or not is_loopback(_host(headers.get("host", ""))):
        raise Refused(
            "local_only", "there are no tokens yet, so only requests from this machine to localhost are answered"
        )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own, and reached from nowhere else."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


Asking = ASGIConnection[Any, Any, Any, Any]


ADDRESS: Final = "perdure_address"
IDENTIFY: Final = "perdure_identify"


def caller_of(connection: Asking) -> Caller:
    caller: Caller = connection.scope["state"]["caller"]
    return caller


def address_of(connection: Asking) -> str:
    """The address that tries of whoever asks are counted for."""
    found: str = connection.scope["state"][ADDRESS]
    return found


async def check_again(connection: Asking) -> None:
    """Find out once more who asks, and whether they may ask for this: for what goes on after the request was admitted.
    Raises as the first time, if the token or session has ended, has other scopes, or a run is out of reach by now."""
    state = connection.scope["state"]
    state["caller"] = await state[IDENTIFY]()
    await connection.route_handler.authorize_connection(connection)


def _check(connection: Asking, scope: Scope) -> None:
    caller = caller_of(connection)
    if not caller.grants.includes(scope):
        more = ", for everything" if caller.grants.reaches(scope) else ""
        raise Refused("forbidden", f"the token {caller.name!r} has the scope {caller.grants}; this needs {scope}{more}")


def reads(connection: Asking, _handler: BaseRouteHandler) -> None:
    _check(connection, Scope.READ)


def operates(connection: Asking, _handler: BaseRouteHandler) -> None:
    _check(connection, Scope.OPERATE)


def administers(connection: Asking, _handler: BaseRouteHandler) -> None:
    _check(connection, Scope.ADMIN)


__all__ = [
    "ADDRESS",
    "IDENTIFY",
    "NOBODY",
    "Access",
    "Asking",
    "Caller",
    "address_of",
    "administers",
    "caller_of",
    "check_again",
    "check_local",
    "is_loopback",
    "new_startup_token",
    "operates",
    "reads",
]
