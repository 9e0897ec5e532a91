"""`engine.audit`: export every change of a run, a record or a token, and who asked for it.

The lines have a stable order. Runs come first, ordered by id, each with its changes in order. Then come records,
ordered by kind and name, each with its versions. Tokens come last. So two exports of the same span of time have the
same lines, except for lines that were added between the two exports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from perdure.api.credentials import Credentials
from perdure.ports import Store
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.checks import checked_time
from perdure.views import shown_time

_RUNS: Final = 200  # runs whose rows are read at once
_VERSIONS: Final = 500
_ALWAYS: Final = -(2**63)


class RunChange(Struct, frozen=True, kw_only=True, tag="run"):
    """A change of a run's status, hold, tags or deadline. `run_id` and `seq` identify the change."""

    run_id: str
    workflow: str
    seq: int
    version: int
    was: str | None
    became: str
    cause: str
    actor: str
    details: str
    at: datetime


class RecordChange(Struct, frozen=True, kw_only=True, tag="record"):
    """A version of a record without its body.

    Actions, prompts, removed dead letters and changed handlers are records.
    """

    kind: str
    name: str
    version: int
    digest: str
    actor: str
    at: datetime


class TokenChange(Struct, frozen=True, kw_only=True, tag="token"):
    """A token was created, replaced, rotated or revoked."""

    name: str
    version: int
    change: str
    scopes: list[str]
    actor: str
    at: datetime


class End(Struct, frozen=True, kw_only=True, tag="end"):
    """The last line of a complete export. `lines` is the number of lines before this one."""

    lines: int


AuditLine = RunChange | RecordChange | TokenChange | End


@checked(constructor=False)
class AuditTrail:
    """The audit trail of everything in the store."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def export(self, *, since: datetime | None = None, until: datetime | None = None) -> AsyncIterator[AuditLine]:
        """Return every change of a run, a record or a token, in a stable order: `async for line in
        engine.audit.export()`. Only changes at or after `since` and before `until` are returned. The export is read in
        pages, so it needs little memory. The last line is an End. An export that does not end with it is incomplete.
        Raises InvalidArguments.
        """
        self._session.check_open()
        first, last = checked_time(since, "since"), checked_time(until, "until")
        return _audit_lines(self._session.caller_store, Credentials(self._session), first, last)


async def _audit_lines(
    store: Store, credentials: Credentials, since: int | None, until: int | None
) -> AsyncIterator[AuditLine]:
    """Return all changes between `since` and `until`, and an End as the last line."""
    first, last = _ALWAYS if since is None else since, until
    lines = 0
    for changes in (_runs(store, first), _records(store, first), _tokens(credentials)):
        async for at, line in changes:
            if at >= first and (last is None or at < last):
                lines += 1
                yield line
    yield End(lines=lines)


async def _runs(store: Store, since: int) -> AsyncIterator[tuple[int, AuditLine]]:
    after = ""
    while page := await store.changed_runs(since=since, after=after, limit=_RUNS):
        after = page[-1].id
        rows: dict[str, list[tuple[int, AuditLine]]] = {run.id: [] for run in page}
        workflows = {run.id: run.workflow for run in page}
        for row in await store.audits([*rows]):
            line = RunChange(
                run_id=row.run_id,
                workflow=workflows[row.run_id],
                seq=row.seq,
                version=row.version,
                was=row.was,
                became=row.became,
                cause=row.cause,
                actor=row.actor,
                details=row.details,
                at=shown_time(row.at),
            )
            rows[row.run_id].append((row.at, line))
        for found in rows.values():
            for one in found:
                yield one


async def _records(store: Store, since: int) -> AsyncIterator[tuple[int, AuditLine]]:
    after: tuple[str, str, int] | None = None
    while page := await store.record_versions(since=since, after=after, limit=_VERSIONS):
        after = (page[-1].kind, page[-1].name, page[-1].version)
        for one in page:
            yield (
                one.at,
                RecordChange(
                    kind=one.kind,
                    name=one.name,
                    version=one.version,
                    digest=one.digest,
                    actor=one.actor,
                    at=shown_time(one.at),
                ),
            )


async def _tokens(credentials: Credentials) -> AsyncIterator[tuple[int, AuditLine]]:
    after: tuple[str, int] | None = None
    while page := await credentials.token_versions(after, _VERSIONS):
        after = (page[-1].name, page[-1].version)
        for one in page:
            body = one.body
            change = body.get("change") or ("revoked" if body["revoked"] else "created")
            scopes = body["scopes"] if "scopes" in body else [body["scope"]]
            line = TokenChange(
                name=one.name, version=one.version, change=change, scopes=scopes, actor=one.actor, at=one.at
            )
            yield _micros(one.at), line


def _micros(at: datetime) -> int:
    passed = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


__all__ = ["AuditLine", "AuditTrail", "End", "RecordChange", "RunChange", "TokenChange"]
