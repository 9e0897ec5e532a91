"""A store that hands everything through to another: the base of those that watch, count or break."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import HandlerBook, MessageEventRow, ScopeRows
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Hold, Mail, PublishedValue, Run, Staged
from perdure.kernel.stock import Artifact, Record, Task
from perdure.ports import (
    ArtifactFilter,
    ChangedRun,
    Clock,
    Insertion,
    Journal,
    LoadedRun,
    News,
    Offer,
    Ripe,
    RunFilter,
    StepPlace,
    Store,
    StoredRun,
    StreamPage,
    TaskFilter,
    Transacts,
)

T = TypeVar("T")


class StoreProxy:
    """Every request goes through `_through`, which a subclass may use to look at it, or to refuse it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        return await request

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

    def is_surely_alive(self) -> bool:
        return self.inner.is_surely_alive()

    def listen(self, heard: Callable[[], object]) -> None:
        self.inner.listen(heard)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
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

    async def mark_dead_engines(self) -> builtins.list[str]:
        return await self._through(self.inner.mark_dead_engines())

    async def engines(self, *, living: bool = False) -> builtins.list[Engine]:
        return await self._through(self.inner.engines(living=living))

    async def commit(self, batch: Batch) -> Committed:
        return await self._through(self.inner.commit(batch))

    def insertion(self, batch: Batch) -> Insertion:
        return self.inner.insertion(batch)

    @property
    def transacts(self) -> Transacts:
        return self.inner.transacts

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        return await self._through(self.inner.transact(place, body))

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        return await self._through(self.inner.claim(engine_id=engine_id, epoch=epoch, offers=offers, limit=limit))

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        return await self._through(self.inner.set_aside(run_id, hold, engine_id=engine_id, at=at))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        return await self._through(self.inner.load(ids))

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        return await self._through(self.inner.load_whole(ids))

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        return await self._through(self.inner.children(ids, stopped=stopped))

    async def ripe(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[Ripe]:
        return await self._through(self.inner.ripe(offers=offers, before=before, limit=limit))

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return await self._through(self.inner.sent(keys))

    async def spreading(self) -> builtins.list[str]:
        return await self._through(self.inner.spreading())

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        return await self._through(self.inner.events(name=name, run_id=run_id, limit=limit))

    async def letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[DeadLetter]:
        return await self._through(self.inner.letters(name=name, after=after, limit=limit))

    async def letter(self, letter_id: str) -> DeadLetter | None:
        return await self._through(self.inner.letter(letter_id))

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        return await self._through(self.inner.purge(at=at, keys_before=keys_before, limit=limit))

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        return await self._through(self.inner.journal(run_id))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        return await self._through(self.inner.journals(ids))

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        return await self._through(self.inner.archived(run_id))

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        return await self._through(self.inner.get(ids))

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        return await self._through(self.inner.list(wanted))

    async def count(self, wanted: RunFilter) -> int:
        return await self._through(self.inner.count(wanted))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        return await self._through(self.inner.tally(cells, limit))

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        return await self._through(self.inner.audit(run_id))

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        return await self._through(self.inner.published(run_id, key))

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        return await self._through(self.inner.stream(run_id, name, after=after, limit=limit))

    async def streams(self, run_id: str) -> dict[str, int]:
        return await self._through(self.inner.streams(run_id))

    async def artifacts(self, wanted: ArtifactFilter) -> builtins.list[Artifact]:
        return await self._through(self.inner.artifacts(wanted))

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        return await self._through(self.inner.artifact(id=id, name=name, version=version))

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return await self._through(self.inner.chunk(artifact_id, number))

    async def tasks(self, wanted: TaskFilter) -> builtins.list[Task]:
        return await self._through(self.inner.tasks(wanted))

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return await self._through(self.inner.load_tasks(ids))

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        claiming = self.inner.claim_tasks(
            queue=queue, worker=worker, lease_us=lease_us, at=at, limit=limit, actor=actor
        )
        return await self._through(claiming)

    async def hold_task(
        self,
        *,
        task_id: str,
        worker: str,
        at: int,
        keep: bool,
        details: str | None = None,
        error: str | None = None,
        actor: str = "",
    ) -> bool:
        holding = self.inner.hold_task(
            task_id=task_id, worker=worker, at=at, keep=keep, details=details, error=error, actor=actor
        )  # fmt: skip
        return await self._through(holding)

    async def put_record(self, record: Record) -> int:
        return await self._through(self.inner.put_record(record))

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        return await self._through(self.inner.record(kind, name, version))

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> builtins.list[Record]:
        return await self._through(self.inner.records(kind, after=after, limit=limit))

    async def audits(self, ids: Sequence[str]) -> builtins.list[Audit]:
        return await self._through(self.inner.audits(ids))

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        return await self._through(self.inner.changed_runs(since=since, after=after, limit=limit))

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> builtins.list[Record]:
        return await self._through(self.inner.record_versions(since=since, after=after, limit=limit))

    async def put_token(self, token: StoredToken) -> bool:
        return await self._through(self.inner.put_token(token))

    async def token(self, name: str) -> StoredToken | None:
        return await self._through(self.inner.token(name))

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> builtins.list[StoredToken]:
        return await self._through(self.inner.tokens(after=after, limit=limit))

    async def token_versions(
        self, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> builtins.list[StoredToken]:
        return await self._through(self.inner.token_versions(after=after, limit=limit))

    async def use_token(self, name: str, *, at: int) -> None:
        await self._through(self.inner.use_token(name, at=at))

    async def put_session(self, session: StoredSession) -> None:
        await self._through(self.inner.put_session(session))

    async def session(self, id: str) -> StoredSession | None:
        return await self._through(self.inner.session(id))

    async def end_session(self, id: str) -> None:
        await self._through(self.inner.end_session(id))

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        return await self._through(self.inner.purge_sessions(at=at, limit=limit))

    async def handlers(self) -> HandlerBook:
        return await self._through(self.inner.handlers())

    async def register(self, handlers: Sequence[tuple[str, str]], *, at: int) -> HandlerBook:
        return await self._through(self.inner.register(handlers, at=at))

    async def unregister(self, topic: str, name: str, *, at: int) -> bool:
        return await self._through(self.inner.unregister(topic, name, at=at))

    async def events_at(self, places: Sequence[tuple[str, int]]) -> builtins.list[MessageEventRow]:
        return await self._through(self.inner.events_at(places))

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        return await self._through(self.inner.scopes(ids))

    async def hierarchy(self, id: str) -> ScopeRows:
        return await self._through(self.inner.hierarchy(id))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return await self._through(self.inner.emitted(message_id))

    async def post(self, mail: Mail) -> int:
        return await self._through(self.inner.post(mail))

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        return await self._through(self.inner.mail(engine_id, limit))

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        return await self._through(self.inner.collect(slots))
