"""The engine's and the client's verbs for structured cooperation: emit, follow, cancel and undo hierarchies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from perdure.coordinator.coordinator import Coordinator
from perdure.errors import CommitRefused, HandlersChanged, RunExists
from perdure.kernel import ops
from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.records import Outcome, Run
from perdure.kernel.status import Status
from perdure.models.cooperation.book import Book
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Topic
from perdure.models.cooperation.drafting import Drafting
from perdure.models.cooperation.events import failure_in
from perdure.models.cooperation.failures import Failure, child_failure
from perdure.models.cooperation.live import LiveOperation
from perdure.models.cooperation.rows import RowCodec, StoredScopes
from perdure.models.cooperation.scope import Emission
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.ports import Clock, Codec, Ids, Store

M = TypeVar("M")


class Source(Protocol):
    """Where a handle gets its answers from: an engine or a client."""

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]: ...

    async def scopes(self, id: str) -> StoredScopes: ...


class RootHandle:
    """A message that was emitted from outside, and all that follows from it. `id` is the first id of the lineage of
    every run below it."""

    def __init__(self, source: Source, id: str, message_id: str, run_ids: tuple[str, ...]) -> None:
        self.id = id
        self.message_id = message_id
        self.run_ids = run_ids  # of those who handle the message itself
        self._source = source

    async def finished(self) -> None:
        """Wait until all who handle the message are done, and all that they emitted. Raises ScopeFailed if one of them
        has failed: then all that it did is undone, or its failure says what is not."""
        ended = [await self._source.outcome(run_id) for run_id in self.run_ids]
        failed = [run for run, _ in ended if run.status in (Status.ROLLED_BACK, Status.ROLLBACK_FAILED)]
        if failed:
            raise (await self._failure([run.id for run in failed])).error()

    async def _failure(self, run_ids: list[str]) -> Failure:
        hierarchy = (await self._source.scopes(self.id)).hierarchy()
        found: list[tuple[Failure, bool]] = []
        for lineage, rows in hierarchy.rows.items():
            if len(lineage) == 2 and lineage[-1] in run_ids:
                failure = failure_in(rows) or Failure(type="unknown", message="it gave no reason")
                found.append((failure, any(row.type == "ROLLBACK_FAILED" for row in rows)))
        return found[0][0] if len(found) == 1 else child_failure("emit", "outside", found)

    def __repr__(self) -> str:
        return f"<root {self.id!r}>"


class Emitting:
    """What whoever has these parts can do with hierarchies."""

    _coordinator: Coordinator
    _store: Store
    _clock: Clock
    _codec: Codec
    _ids: Ids
    _book: Book
    _drafting: Drafting

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]:
        raise NotImplementedError

    def _expect(self, began: Iterable[LiveOperation]) -> None:
        """These runs are about to be committed, and to be begun here: not by a client."""
        del began

    async def emit(
        self,
        topic: Topic[M],
        message: M,
        *,
        id: str | None = None,
        context: Context = EMPTY,
        tags: Mapping[str, str] | None = None,
        actor: str = "api",
    ) -> RootHandle:
        """Emit a message as the root of a hierarchy; its handle once it is durable, with a run for every handler that
        is registered for the topic.

        With an `id`, the message's, this is idempotent: a second time gives the same hierarchy; on another topic it
        raises RunExists. Raises InvalidArguments, UnstorableValue.
        """
        self._check_open(to_start=True)
        if actor != "api":
            checked_remark("", actor)
        payload = topic.write(message)
        if id is not None and (known := await self._store.emitted(checked_text(id, "a message's id"))) is not None:
            return await self._root(known, topic)
        now = self._clock.now()
        emission = Emission(
            message_id=self._ids(now) if id is None else id,
            topic=topic.name,
            payload=payload,
            context=context,
            root=self._ids(now),
        )
        await self._book.load()
        kept = checked_tags(tags)
        while True:
            draft = self._drafting.emitted(emission)
            now = self._clock.now()
            op = ops.Emit(
                run_id="",
                at=now,
                actor=actor,
                added=self._drafting.added(draft, now),
                starts=self._drafting.starts(draft, kept, now),
            )
            self._expect(draft.began)
            try:
                await self._coordinator.submit(op)
            except HandlersChanged:
                await self._book.load(again=True)
            except CommitRefused:
                if id is None or (known := await self._store.emitted(id)) is None:
                    raise
                return await self._root(known, topic)
            else:
                run_ids = tuple(run.id for run in draft.runs)
                return RootHandle(self, emission.root or "", emission.message_id, run_ids)

    async def _root(self, known: MessageEventRow, topic: Topic[Any]) -> RootHandle:
        found = await self._store.hierarchy(known.scope)
        message = next(one for one in found.messages if one.id == known.message_id)
        if message.topic != topic.name:
            raise RunExists(
                f"message {known.message_id!r} was emitted on topic {message.topic!r}, not on {topic.name!r}",
                run_id=known.message_id,
            )
        run_ids = tuple(run.id for run in found.runs if run.parent_id == known.scope)
        return RootHandle(self, known.scope, known.message_id, run_ids)

    async def scopes(self, id: str) -> StoredScopes:
        """All rows of a hierarchy, or of the part of it below a run."""
        self._check_open()
        return RowCodec(self._codec).read(await self._store.hierarchy(checked_text(id, "an id")))


__all__ = ["Emitting", "RootHandle"]
