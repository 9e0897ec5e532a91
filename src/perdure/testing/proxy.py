"""A store that passes every request to another store. It is the base class of stores that watch, count or fail.

It has a class for each part of the store's interface, as the real stores have.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.artifacts import Artifact
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import HandlerList, MessageEventRow, ScopeRows
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.records import Record
from perdure.kernel.rows import Engine, Entry, Mail, PublishedValue, Staged
from perdure.kernel.runs import Audit, Hold, Run
from perdure.kernel.tasks import Task
from perdure.ports import (
    ArtifactFilter,
    ChangedRun,
    Clock,
    DueRun,
    Insertion,
    Journal,
    LoadedRun,
    Offer,
    RunFilter,
    StepPlace,
    Store,
    StoredRun,
    StreamPage,
    TaskFilter,
    Transacts,
    WorkFound,
)

T = TypeVar("T")


class _Through:
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        return await request


class _CommitProxy(_Through):
    async def commit(self, batch: Batch) -> Committed:
        return await self._through(self.inner.commit(batch))

    def insertion(self, batch: Batch) -> Insertion:
        return self.inner.insertion(batch)

    @property
    def transacts(self) -> Transacts:
        return self.inner.transacts

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        return await self._through(self.inner.transact(place, body))


class _FleetProxy(_Through):
    def listen(self, on_change: Callable[[], object]) -> None:
        self.inner.listen(on_change)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        return await self._through(self.inner.look(engine_id=engine_id, offers=offers, at=at))

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        return await self._through(
            self.inner.enroll(engine_id=engine_id, host=host, pid=pid, workflows=workflows, at=at)
        )

    async def retire(self, engine_id: str) -> None:
        await self._through(self.inner.retire(engine_id))

    def withdraw(self, engine_id: str) -> None:
        self.inner.withdraw(engine_id)

    def is_surely_alive(self) -> bool:
        return self.inner.is_surely_alive()

    async def mark_dead_engines(self) -> list[str]:
        return await self._through(self.inner.mark_dead_engines())

    async def engines(self, *, living: bool = False) -> list[Engine]:
        return await self._through(self.inner.engines(living=living))

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        return await self._through(self.inner.claim(engine_id=engine_id, epoch=epoch, offers=offers, limit=limit))


class _RunProxy(_Through):
    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        return await self._through(self.inner.set_aside(run_id, hold, engine_id=engine_id, at=at))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        return await self._through(self.inner.load(ids))

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        return await self._through(self.inner.load_whole(ids))

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        return await self._through(self.inner.children(ids, stopped=stopped))

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        return await self._through(self.inner.due_runs(offers=offers, before=before, limit=limit))

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        return await self._through(self.inner.get(ids))

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        return await self._through(self.inner.list(wanted))

    async def count(self, wanted: RunFilter) -> int:
        return await self._through(self.inner.count(wanted))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        return await self._through(self.inner.tally(cells, limit))

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        return await self._through(self.inner.changed_runs(since=since, after=after, limit=limit))


class _JournalProxy(_Through):
    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        return await self._through(self.inner.journal(run_id))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        return await self._through(self.inner.journals(ids))

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        return await self._through(self.inner.archived(run_id))

    async def audit(self, run_id: str) -> list[Audit]:
        return await self._through(self.inner.audit(run_id))

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        return await self._through(self.inner.audits(ids))


class _EventProxy(_Through):
    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return await self._through(self.inner.sent(keys))

    async def spreading(self) -> list[str]:
        return await self._through(self.inner.spreading())

    async def events(self, *, name: str | None = None, run_id: str | None = None, limit: int = 100) -> list[Event]:
        return await self._through(self.inner.events(name=name, run_id=run_id, limit=limit))

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        return await self._through(self.inner.dead_letters(name=name, after=after, limit=limit))

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        return await self._through(self.inner.dead_letter(letter_id))


class _StreamProxy(_Through):
    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        return await self._through(self.inner.published(run_id, key))

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        return await self._through(self.inner.stream(run_id, name, after=after, limit=limit))

    async def streams(self, run_id: str) -> dict[str, int]:
        return await self._through(self.inner.streams(run_id))


class _ArtifactProxy(_Through):
    async def artifacts(self, wanted: ArtifactFilter) -> list[Artifact]:
        return await self._through(self.inner.artifacts(wanted))

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        return await self._through(self.inner.artifact(id=id, name=name, version=version))

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return await self._through(self.inner.chunk(artifact_id, number))


class _TaskProxy(_Through):
    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        return await self._through(self.inner.tasks(wanted))

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return await self._through(self.inner.load_tasks(ids))

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> list[Task]:
        claiming = self.inner.claim_tasks(
            queue=queue, worker=worker, lease_us=lease_us, at=at, limit=limit, actor=actor
        )
        return await self._through(claiming)

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        renewing = self.inner.renew_lease(task_id=task_id, worker=worker, at=at, details=details, actor=actor)
        return await self._through(renewing)


class _RecordProxy(_Through):
    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        return await self._through(self.inner.record(kind, name, version))

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        return await self._through(self.inner.records(kind, after=after, limit=limit))

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        return await self._through(self.inner.record_versions(since=since, after=after, limit=limit))


class _AccessProxy(_Through):
    async def token(self, name: str) -> StoredToken | None:
        return await self._through(self.inner.token(name))

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> list[StoredToken]:
        return await self._through(self.inner.tokens(after=after, limit=limit))

    async def token_versions(self, *, after: tuple[str, int] | None = None, limit: int = 100) -> list[StoredToken]:
        return await self._through(self.inner.token_versions(after=after, limit=limit))

    async def use_token(self, name: str, *, at: int) -> None:
        await self._through(self.inner.use_token(name, at=at))

    async def session(self, id: str) -> StoredSession | None:
        return await self._through(self.inner.session(id))

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        return await self._through(self.inner.purge_sessions(at=at, limit=limit))


class _CooperationProxy(_Through):
    async def handlers(self) -> HandlerList:
        return await self._through(self.inner.handlers())

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        return await self._through(self.inner.scopes(ids))

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        return await self._through(self.inner.events_at(places))

    async def hierarchy(self, id: str) -> ScopeRows:
        return await self._through(self.inner.hierarchy(id))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return await self._through(self.inner.emitted(message_id))


class _MailProxy(_Through):
    async def leave_mail(self, mail: Mail) -> int:
        return await self._through(self.inner.leave_mail(mail))

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        return await self._through(self.inner.mail(engine_id, limit))

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        return await self._through(self.inner.collect(slots))


class _RetentionProxy(_Through):
    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        return await self._through(self.inner.purge(at=at, keys_before=keys_before, limit=limit))


class StoreProxy(
    _CommitProxy,
    _FleetProxy,
    _RunProxy,
    _JournalProxy,
    _EventProxy,
    _StreamProxy,
    _ArtifactProxy,
    _TaskProxy,
    _RecordProxy,
    _AccessProxy,
    _CooperationProxy,
    _MailProxy,
    _RetentionProxy,
):
    """A store that passes every request through `_through`.

    A subclass may override `_through` to look at a request or to refuse it.
    """

    async def open(self) -> None:
        await self._through(self.inner.open())

    async def close(self) -> None:
        await self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()

    @property
    def clock(self) -> Clock | None:
        return self.inner.clock

    @property
    def poll_s(self) -> float:
        return self.inner.poll_s
