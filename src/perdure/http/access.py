"""Access: who the caller of a request is, and whether the caller may do what it requests.

A caller sends a token. Until the first token is created, the server accepts every caller on this machine, and nobody
else. In this time, a server may require a start-up token, which only the person who started the server knows. This is
for servers behind a reverse proxy on the same machine. There, every request seems to come from this machine.

The dashboard uses the same functions: `Access.identify` identifies the caller. `reads`, `operates` and `administers`
are guards for handlers.
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

NOBODY: Final = "http"  # the actor of changes as long as there are no tokens
NOTED_EVERY_S: Final = 60.0
STARTUP_SESSION_S: Final = 12 * 3600.0
_STARTUP_SESSIONS_MAX: Final = 100
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Caller(Struct, frozen=True):
    """The caller of a request. It has a name, which is the actor in the audit trail, and scopes."""

    name: str
    grants: Grants
    by_token: bool


STARTUP: Final = "perdure_startup_"


def new_startup_token() -> str:
    """Return a start-up token for one server. It is valid until the server ends, or until the first token is created in
    its store.
    """
    return STARTUP + secrets.token_urlsafe(32)


class Access:
    """Identifies callers. Once this process has seen that a token exists, every caller needs a token, until the process
    ends.
    """

    def __init__(self, client: AnyClient, startup_token: str | None = None) -> None:
        self.client = client
        self._needs_token = False
        self._startup_token = startup_token
        # by the SHA-256 of a session's id: when the session ends; oldest first
        self._startup_sessions: dict[bytes, float] = {}
        self._noted_at: dict[str, float] = {}  # by the name of a token: when its use was last written

    async def needs_token(self) -> bool:
        """Whether every caller needs a token, because a token was created at some time."""
        if not self._needs_token:
            self._needs_token = await has_tokens(self.client)
        return self._needs_token

    async def identify(self, headers: dict[str, str], peer: str | None) -> Caller:
        """Return the caller of a request with these headers, from the address `peer`. `peer` is None for a socket
        without addresses.

        Cookies are ignored. So a page of another site cannot act in the name of its visitor. Raises Refused.
        """
        if await self.needs_token():
            return await self._by_token(_bearer(headers))
        check_local(headers, peer)
        if self._startup_token is not None and not self.is_startup_token(_bearer(headers)):
            raise _unauthenticated("send the start-up token that the server printed: Authorization: Bearer …")
        return Caller(NOBODY, EVERYTHING, False)

    @property
    def needs_startup_token(self) -> bool:
        """Whether callers on this machine need the start-up token, as long as there is no other token."""
        return self._startup_token is not None

    def is_startup_token(self, shown: str) -> bool:
        """Whether this text is the start-up token."""
        return self._startup_token is not None and _is_same(self._startup_token, shown)

    # Sessions of people who have signed in with the start-up token. They are kept in memory, because they end with this
    # process.

    def open_startup_session(self) -> str:
        """Return the id of a new session. The browser keeps this id instead of the start-up token."""
        session = secrets.token_urlsafe(32)
        self._startup_sessions[_digest(session)] = monotonic() + STARTUP_SESSION_S
        if len(self._startup_sessions) > _STARTUP_SESSIONS_MAX:
            del self._startup_sessions[next(iter(self._startup_sessions))]
        return session

    def is_startup_session(self, shown: str) -> bool:
        """Whether this is the id of an open start-up session."""
        return self._startup_sessions.get(_digest(shown), 0.0) > monotonic()

    def end_startup_session(self, shown: str) -> None:
        """End a session. An unknown id is ignored."""
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
        """Write to the store that a token was used now. This is done at most once a minute. A write for each request
        would be too many.
        """
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
    """Raise Refused unless a request comes from this machine, is addressed to this machine, and did not pass a proxy. A
    foreign host name that resolves to this machine (DNS rebinding) is refused.
    """
    is_passed_on = any(name in headers for name in _FORWARDED)
    if (peer is not None and not is_loopback(peer)) or is_passed_on or not is_loopback(_host(headers.get("host", ""))):
        raise Refused(
            "local_only", "there are no tokens yet: only requests from this machine to localhost are answered"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine itself can reach this host name or address."""
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
    """Return the caller of a request."""
    caller: Caller = connection.scope["state"]["caller"]
    return caller


def address_of(connection: Asking) -> str:
    """Return the address for which failed sign-ins of this caller are counted."""
    found: str = connection.scope["state"][ADDRESS]
    return found


async def check_again(connection: Asking) -> None:
    """Identify and authorise the caller of a long request again. Raises the errors that a new request would get. This
    is so if the token or the session has ended, if its scopes are no longer sufficient, or if the caller may no longer
    see the run.
    """
    state = connection.scope["state"]
    state["caller"] = await state[IDENTIFY]()
    await connection.route_handler.authorize_connection(connection)


def _check(connection: Asking, scope: Scope) -> None:
    caller = caller_of(connection)
    if not caller.grants.includes(scope):
        more = ", for everything" if caller.grants.reaches(scope) else ""
        raise Refused("forbidden", f"the token {caller.name!r} has the scope {caller.grants}; this needs {scope}{more}")


def reads(connection: Asking, _handler: BaseRouteHandler) -> None:
    """Guard a handler: the caller must be allowed to read everything. Raises Refused."""
    _check(connection, Scope.READ)


def operates(connection: Asking, _handler: BaseRouteHandler) -> None:
    """Guard a handler: the caller must be allowed to operate everything. Raises Refused."""
    _check(connection, Scope.OPERATE)


def administers(connection: Asking, _handler: BaseRouteHandler) -> None:
    """Guard a handler: the caller must be an administrator. Raises Refused."""
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
