"""`engine.credentials`: the stored tokens of the HTTP API, and sessions of the dashboard.

perdure.http decides what a token may do and when it is valid. This module writes the versions of a token one after the
other, so that two changes at the same time cannot overwrite each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.coordinator.call_spans import whole_calls
from perdure.errors import StoreError
from perdure.kernel import ops
from perdure.kernel.access import StoredSession, StoredToken
from perdure.ports import Codec, Store
from perdure.session import Session
from perdure.values.checks import checked_remark, checked_text
from perdure.views import plain_value, shown_time

_PAGE: Final = 200
_TIDIED_AT_ONCE: Final = 100


class TokenRecord(Struct, frozen=True, kw_only=True):
    """One version of a token. `actor` wrote this version, at the time `at`."""

    name: str
    version: int
    actor: str
    at: datetime
    used_at: datetime | None
    body: Any


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session that has not ended."""

    id: str
    actor: str
    at: datetime
    body: Any


@whole_calls()
class Credentials:
    """Tokens of the HTTP API and sessions of the dashboard."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _patient(self) -> Store:
        """The store, with retries while it is busy."""
        self._session.check_open()
        return self._session.caller_store

    async def _submit(self, op: ops.Op) -> Any:
        self._session.check_open()
        return await self._session.coordinator.submit(op)

    @property
    def _codec(self) -> Codec:
        return self._session.codec

    def now(self) -> int:
        """Return the current time in microseconds.

        This time decides whether a token or a session has expired. All servers on a shared database use the same clock.
        """
        return self._session.clock.now()

    # Tokens.

    async def put_token(self, name: str, body: Any, *, version: int, actor: str) -> bool:
        """Write the next version of a token. Returns False, and writes nothing, if this version exists already."""
        checked_text(name, "a token's name")
        checked_remark("", actor)
        text = msgspec.json.encode(body, order="sorted").decode()
        now = self.now()
        token = StoredToken(
            name=name,
            version=version,
            digest=hashlib.sha256(text.encode()).hexdigest(),
            actor=actor,
            at=now,
            body=self._codec.encode(text),
        )
        is_newest: bool = await self._submit(ops.PutToken(run_id="", at=now, actor=actor, token=token))
        return is_newest

    async def token(self, name: str) -> TokenRecord | None:
        """Return the newest version of a token, or None. Raises RowDamaged."""
        found = await self._patient.token(checked_text(name, "a token's name"))
        return None if found is None else self._token(found)

    async def tokens(self) -> AsyncIterator[TokenRecord]:
        """Return the newest versions of all tokens, by name."""
        after: str | None = None
        while page := await self._patient.tokens(after=after, limit=_PAGE):
            for found in page:
                yield self._token(found)
            after = page[-1].name

    async def token_versions(self, after: tuple[str, int] | None = None, limit: int = _PAGE) -> list[TokenRecord]:
        """Return all versions of all tokens, ordered by name and version. They show who created, rotated and revoked
        each token, and when.
        """
        return [self._token(found) for found in await self._patient.token_versions(after=after, limit=limit)]

    async def has_tokens(self) -> bool:
        return bool(await self._patient.tokens(limit=1))

    async def note_use(self, name: str) -> None:
        """Store that a token was used now. If the store is busy, nothing is stored."""
        with suppress(StoreError):
            await self._session.store.use_token(name, at=self.now())

    def _token(self, found: StoredToken) -> TokenRecord:
        return TokenRecord(
            name=found.name,
            version=found.version,
            actor=found.actor,
            at=shown_time(found.at),
            used_at=None if found.used_at is None else shown_time(found.used_at),
            body=plain_value(found.body, self._codec, f"perdure_tokens.body of {found.name!r}"),
        )

    # Sessions.

    async def put_session(self, id: str, body: Any, *, lasts_us: int, actor: str) -> None:
        """Add a session."""
        checked_remark("", actor)
        now = self.now()
        text = self._codec.encode(msgspec.json.encode(body).decode())
        session = StoredSession(id=id, until=now + lasts_us, actor=actor, at=now, body=text)
        await self._submit(ops.PutSession(run_id="", at=now, actor=actor, session=session))

    async def session(self, id: str) -> SessionRecord | None:
        """Return a session, or None if it has ended. Raises RowDamaged."""
        found = await self._patient.session(id)
        if found is None or found.until <= self.now():
            return None
        body = plain_value(found.body, self._codec, f"perdure_sessions.body of {found.id!r}")
        return SessionRecord(id=found.id, actor=found.actor, at=shown_time(found.at), body=body)

    async def end_session(self, id: str) -> None:
        """Remove a session. A second call changes nothing."""
        await self._submit(ops.EndSession(run_id="", at=self.now(), id=id))

    async def tidy_sessions(self) -> None:
        """Remove some sessions that have ended, unless the store is busy.

        Each sign-in adds one session. Before that, it removes up to _TIDIED_AT_ONCE sessions that have ended. So ended
        sessions do not accumulate. `engine.events.purge` removes ended sessions too.
        """
        with suppress(StoreError):
            await self._session.store.purge_sessions(at=self.now(), limit=_TIDIED_AT_ONCE)


__all__ = ["Credentials", "SessionRecord", "TokenRecord"]
