"""The engine's and the client's verbs for structured cooperation: emit, follow, cancel and undo hierarchies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.arguments import Duration, checked
from perdure.cancellation import TokenMembers, asking
from perdure.connections import insert_async
from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.deciding import drafted_emission
from perdure.coordinator.post import PostOffice
from perdure.coordinator.turns import in_turns
from perdure.errors import (
    CommitRefused,
    EngineBug,
    EngineStopped,
    HandlersChanged,
    Misuse,
    RunExists,
    RunNotFound,
    StoreError,
    UnstorableValue,
)
from perdure.fences import Fences
from perdure.kernel import ops
from perdure.kernel.cooperating import JOIN
from perdure.kernel.cooperation import Cooperation, MessageEventRow, ScopeRows, depth_of
from perdure.kernel.pieces import at_once
from perdure.kernel.records import Outcome, Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.cooperation.book import Book
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.context import EMPTY, CancellationToken, Context, bounded, checked_tokens
from perdure.models.cooperation.define import Topic
from perdure.models.cooperation.drafting import Drafting
from perdure.models.cooperation.events import (
    Lineage,
    MessageEvent,
    ReturnValue,
    State,
    failure_in,
    is_root_run,
)
from perdure.models.cooperation.failures import Failure, child_failure
from perdure.models.cooperation.live import Draft, LiveOperation, News
from perdure.models.cooperation.moves import NewRun, OperationRun, Writes
from perdure.models.cooperation.requests import cancel, complete, complete_rollback, dismiss, fail, roll_back
from perdure.models.cooperation.rows import RowCodec, StoredScopes, outcome_failure
from perdure.models.cooperation.scope import Emission, checked_emission, read_value
from perdure.models.cooperation.tokens import cancellation
from perdure.models.functions.canonical import canonical
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.ports import Clock, Codec, Ids, RunFilter, Store, TakenMessage

M = TypeVar("M")
V = TypeVar("V")

_PAGE = 64
_AT_WORK = (Status.SUSPENDED, Status.RUNNING)
_NOT_BEGUN = (Status.CREATED, Status.RUNNING)  # by their status alone


class Source(Protocol):
    """Where a handle gets its answers from: an engine or a client."""

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]: ...

    async def root_scopes(self, id: str) -> StoredScopes: ...

    async def with_causes(self, failure: Failure) -> Failure: ...

    async def cancel_scope(self, id: str, *, reason: str = "", actor: str = "api") -> bool: ...

    async def roll_back(self, id: str, *, reason: str = "", actor: str = "api") -> bool: ...


@checked(constructor=False)
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
            raise (await failure_of(self._source, self.id, [run.id for run in failed])).error()

    async def returned(self, name: str, type: type[V], *, handler: str | None = None) -> list[V]:
        """What those who handle the message itself have returned under a name, of each that has committed; with a
        `handler`, only what that operation has. Raises UnstorableValue if a value does not fit the type."""
        found = await self._source.root_scopes(self.id)
        values = {value.lineage[-1]: value for value in found.values if value.variable == name}
        return [
            read_value(values[run_id], type)
            for run_id in self.run_ids
            if run_id in values
            and found.statuses.get(run_id) == Status.SUCCEEDED
            and handler in (None, values[run_id].handler)
        ]

    async def cancel(self, reason: str = "") -> bool:
        """As Engine.cancel."""
        return await self._source.cancel_scope(self.id, reason=reason)

    async def roll_back(self, reason: str = "") -> bool:
        """As Engine.roll_back."""
        return await self._source.roll_back(self.id, reason=reason)

    def __repr__(self) -> str:
        return f"<root {self.id!r}>"


async def failure_of(source: Source, root: str, run_ids: Sequence[str]) -> Failure:
    """Why a hierarchy has failed, if these are the runs that have failed of those who handle its message."""
    runs = await source.root_scopes(root)
    hierarchy = await in_turns(runs.hierarchy_in_pieces())
    found: list[tuple[Failure, bool]] = []
    for run in runs.runs.values():
        rows = hierarchy.own(run.lineage)
        if run.id in run_ids:
            failure = failure_in(rows) or Failure(type="unknown", message="it gave no reason")
            failure = await source.with_causes(failure)
            found.append((failure, any(row.type == "ROLLBACK_FAILED" for row in rows)))
    return found[0][0] if len(found) == 1 else child_failure("emit", "outside", found)


@checked
class Emitting:
    """What whoever has these parts can do with hierarchies."""

    _coordinator: Coordinator
    _patient_store: Store
    _clock: Clock
    _codec: Codec
    _ids: Ids
    _book: Book
    _drafting: Drafting
    _post: PostOffice

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
        deadline: datetime | Duration | None = None,
        rollback_deadline: datetime | Duration | None = None,
        delay: Duration | None = None,
        tokens: Iterable[CancellationToken] = (),
        tags: Mapping[str, str] | None = None,
        actor: str = "api",
        connection: object | None = None,
    ) -> RootHandle:
        """Emit a message as the root of a hierarchy; its handle once it is durable, with a run for every handler that
        is registered for the topic.

        With an `id`, the message's, this is idempotent: a second time gives the same hierarchy; on another topic, or
        with another content, it raises RunExists. An `actor` that is named is in the audit of these runs.

        A hierarchy that is not done by its `deadline` gives up and rolls back; one that has not rolled back by its
        `rollback_deadline` ends as rollback_failed. Both hold for all runs below, and the earliest one counts. Handlers
        begin after the `delay`, which a crash does not forget. When one of the `tokens` is cancelled, all runs below
        give up; if one is cancelled already, they do so before their first steps. Raises InvalidArguments,
        UnstorableValue.

        With a `connection` of the caller's own to the store's database, as `start` takes it, the message and its runs
        are written by it, in its transaction: they are there with the commit, and are handled soon after, or never
        were. Until the commit, its handle raises RunNotFound. Raises Misuse if the connection cannot be used for that,
        and what its driver raises; neither Misuse nor RunExists spoils the transaction.
        """
        self._check_open(to_start=True)
        if actor != "api":
            checked_remark("", actor)
        checked_emission(topic, context)
        context = bounded(
            context,
            now=self._clock.now(),
            source="outside" if actor == "api" else actor,
            deadline=deadline,
            rollback_deadline=rollback_deadline,
            delay=delay,
            tokens=tokens,
        )
        payload, kept = topic.write(message), checked_tags(tags)
        known = None if id is None else await self._patient_store.emitted(checked_text(id, "a message's id"))
        if known is not None:
            return await self._root(known, topic, payload)
        if connection is not None:
            return await self._insert(topic, payload, id, context, kept, actor, connection)
        return await self._emit(topic, payload, id, context=context, tags=kept, actor=actor)

    async def _insert(
        self,
        topic: Topic[Any],
        payload: str,
        id: str | None,
        context: Context,
        tags: Mapping[str, str],
        actor: str,
        connection: object,
    ) -> RootHandle:
        """Emit in the caller's transaction. Whoever has the code takes the runs after its commit."""
        emission = self._new_emission(topic, payload, id, context)
        await self._book.load(again=True)
        while True:
            draft = self._drafting.emitted(emission, begins=False)
            batch = drafted_emission(self._emit_op(draft, tags, actor), self._coordinator.engine)
            try:
                known = await insert_async(connection, self._patient_store.insertion(batch))
            except HandlersChanged:
                await self._book.load(again=True)
                continue
            if isinstance(known, TakenMessage):
                stored = await self._patient_store.emitted(known.message_id)
                if stored is None:
                    raise Misuse(
                        f"message {known.message_id!r} was emitted before in this transaction, which is not committed: "
                        "keep the handle that it gave",
                        run_id=known.scope,
                    )
                return await self._root(stored, topic, payload)
            return RootHandle(self, emission.root or "", emission.message_id, tuple(run.id for run in draft.runs))

    def _new_emission(self, topic: Topic[Any], payload: str, id: str | None, context: Context) -> Emission:
        now = self._clock.now()
        return Emission(
            message_id=self._ids(now) if id is None else id,
            topic=topic.name,
            payload=payload,
            context=context,
            root=self._ids(now),
        )

    def _emit_op(self, draft: Draft, tags: Mapping[str, str], actor: str) -> ops.Emit:
        now = self._clock.now()
        starts = at_once(self._drafting.starts(draft, tags, now))
        if actor != "api":
            starts = tuple(replace(start, actor=actor) for start in starts)
        return ops.Emit(
            run_id="",
            at=now,
            actor=actor,
            added=at_once(self._drafting.added(draft, now)),
            starts=starts,
            members=at_once(self._drafting.members(draft, now)),
        )

    async def hold_back(self, topic: Topic[Any], id: str) -> RootHandle:
        """Have a message never be emitted, unless it was: then its hierarchy. Nobody handles it, whenever it comes."""
        self._check_open()
        if (known := await self._patient_store.emitted(checked_text(id, "a message's id"))) is not None:
            return await self._root(known, topic)
        return await self._emit(topic, "null", id, handled=False)

    async def _emit(
        self,
        topic: Topic[Any],
        payload: str,
        id: str | None,
        *,
        handled: bool = True,
        context: Context = EMPTY,
        tags: Mapping[str, str] | None = None,
        actor: str = "api",
    ) -> RootHandle:
        emission = self._new_emission(topic, payload, id, context)
        await self._book.load()
        while True:
            draft = self._drafting.emitted(emission, handled=handled)
            op = self._emit_op(draft, tags or {}, actor)
            self._expect(draft.began)
            try:
                await self._coordinator.submit(op)
            except HandlersChanged:
                await self._book.load(again=True)
            except CommitRefused:
                if id is None or (known := await self._patient_store.emitted(id)) is None:
                    raise
                return await self._root(known, topic, payload if handled else None)
            else:
                if op.members:
                    await self._try_to_read_mail()
                run_ids = tuple(run.id for run in draft.runs)
                return RootHandle(self, emission.root or "", emission.message_id, run_ids)

    async def _root(self, known: MessageEventRow, topic: Topic[Any], payload: str | None = None) -> RootHandle:
        """The hierarchy of a message that was emitted before. Raises RunExists if that was another one: on another
        topic, or with another `payload`."""
        found = await self._patient_store.scopes([known.scope])
        message = next(one for one in found.messages if one.id == known.message_id)
        if message.topic != topic.name:
            raise RunExists(
                f"message {known.message_id!r} was emitted on topic {message.topic!r}, not on {topic.name!r}",
                run_id=known.scope,
            )
        if payload is not None and not _is_same(topic, self._codec.decode(message.payload), payload):
            raise RunExists(
                f"message {known.message_id!r} was emitted on topic {topic.name!r} with another content: nothing was "
                "emitted. Use another id",
                run_id=known.scope,
            )
        run_ids = tuple(run.id for run in found.runs if run.parent_id == known.scope)
        return RootHandle(self, known.scope, known.message_id, run_ids)

    async def scopes(self, id: str) -> StoredScopes:
        """All rows of a hierarchy, or of the part of it below a run."""
        self._check_open()
        return await self._read(await self._patient_store.hierarchy(checked_text(id, "an id")))

    async def root_scopes(self, id: str) -> StoredScopes:
        """The rows of a root emission, and what there is of those who handle its message, without all below them."""
        self._check_open()
        return await self._read(await self._patient_store.scopes([id]))

    async def _read(self, rows: ScopeRows) -> StoredScopes:
        return await in_turns(RowCodec(self._codec).read_in_pieces(rows))

    async def with_causes(self, failure: Failure) -> Failure:
        """The failure with those of its causes that other rows have, within bounds."""
        return await CauseReader(self._patient_store, RowCodec(self._codec)).whole(failure)

    # Giving up and undoing.

    async def cancel_scope(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        """Have a hierarchy (by the id of its root), or the part of it from a run on, give up: each run of it that has
        not ended rolls back at its next step boundary, and functions and graphs that were started in it are cancelled.
        False if it has ended, or was cancelled before.

        Once this has returned True, no further step begins, but for those of rollbacks: runs of other engines have
        heard of it. So it takes as long as it takes those engines to read their mail. If this process dies before, the
        cancellation counts all the same.
        """
        if not (asked := await self.request_cancel(id, reason=reason, actor=actor)):
            return False
        await self._fences().of_hierarchies([id])
        stored = await self._patient_store.load(asked)
        return any(one.run.status is not Status.SUCCEEDED for one in stored.values())

    async def request_cancel(self, id: str, *, reason: str = "", actor: str = "api") -> list[str]:
        """As `cancel_scope`, without waiting until other engines know. Returns the runs that were asked; none if the
        hierarchy has ended, or was cancelled before."""
        self._check_open()
        checked_remark(reason, actor)
        found = await self.root_scopes(checked_text(id, "an id"))
        lineage, message_id = _place(found, id)
        told = [run for run in found.runs.values() if run.id == id or _is_handled_by(run, id)]
        if not lineage or all(found.statuses[run.id] in FINISHED for run in told):
            return []
        hierarchy = await in_turns(found.hierarchy_in_pieces())
        rows = cancel(lineage, hierarchy.own(lineage), message_id, reason=reason or "cancelled", source=actor)
        if not rows:
            return []
        now = self._clock.now()
        tells = [self._asking(hierarchy.view(run, now), found.statuses[run.id], rows[0], actor) for run in told]
        op = ops.CancelScope(run_id=id, at=now, actor=actor, added=self._stamped(rows, now), tells=tuple(tells))
        return [run.id for run in told] if await self._submitted(op) else []

    async def cancel_token(self, token: CancellationToken, *, reason: str = "", actor: str = "api") -> bool:
        """Cancel a token: each run that has it, in whatever hierarchy, gives up at its next step boundary, and rolls
        back. What is emitted with it from now on gives up before its first step. Whether or not a run has the token, it
        stays cancelled for good. False if it was cancelled before: the first reason counts.

        Once this has returned, no further step of these runs begins: runs of other engines have heard of it. If this
        process dies before, the cancellation counts if it was stored; then another engine tells the runs. Raises
        InvalidArguments.
        """
        self._check_open()
        checked_remark(reason, actor)
        (name,) = checked_tokens([token])
        now = self._clock.now()
        op = ops.CancelScope(
            run_id=token.scope,
            at=now,
            actor=actor,
            added=self._stamped([cancellation(token, reason=reason, source=actor)], now),
            members=(ops.TellMembers(run_id=token.scope, at=now, actor=actor, token=name),),
        )
        is_first = await self._submitted(op)
        await self._read_mail()
        await self._fences().of_hierarchies(await self._members(self._patient_store).ids(token))
        return is_first

    def _members(self, store: Store) -> TokenMembers:
        return TokenMembers(store, RowCodec(self._codec), self._drafting)

    async def _find_members(self, op: ops.TellMembers, store: Store) -> ops.TellMembers:
        return await self._members(store).found(op, self._clock.now())

    async def _read_mail(self) -> None:
        """Read the mail that the last commit has left. Raises StoreError."""
        await self._post.read_for_caller(self._coordinator, self._patient_store)

    async def _try_to_read_mail(self) -> None:
        """Read the mail that the last commit has left. If that cannot be done now, it is read later, here or
        elsewhere."""
        with suppress(EngineStopped, StoreError):
            await self._read_mail()

    def _fences(self) -> Fences:
        return Fences(self._patient_store, self._coordinator, self._clock, self._read_mail)

    async def fence_children(self, id: str) -> None:
        """Wait until no step begins any more of the children of a run that was ended, wherever they are."""
        await self._fences().of_children(id)

    def _asking(self, view: OperationRun, status: str, row: MessageEvent, actor: str) -> ops.Tell:
        """Have a run give up that a cancellation concerns."""
        if row.exception is None:
            raise EngineBug("a cancellation has no reason")
        depth = depth_of(row.cooperation_lineage)
        return asking(self._drafting, view, status, row.exception, depth, view.now, actor)

    async def roll_back(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        """Undo a hierarchy that has ended, or (with a run's id) the part of it from that run on: everything that was
        committed in it is rolled back, the newest first.

        False, and nothing is done, if a run above or below has not ended, or if there is nothing to undo.
        """
        self._check_open(to_start=True)
        checked_remark(reason, actor)
        lineage, _ = _place(await self.root_scopes(checked_text(id, "an id")), id)
        if not lineage:
            return False
        found = await self.scopes(lineage[0])
        runs = [run.lineage for run in found.runs.values()]
        rows = roll_back(lineage, found.events, runs, reason=reason or "asked for", source=actor)
        if not rows:
            return False
        now = self._clock.now()
        below = [run for run in found.runs.values() if _is_handled_by(run, id)]
        tells = [ops.Tell(run_id=run.id, at=now, actor=actor, kind="undo") for run in below]
        op = ops.UndoScope(run_id=id, at=now, actor=actor, added=self._stamped(rows, now), tells=tuple(tells))
        return await self._submitted(op)

    def _stamped(self, rows: Sequence[MessageEvent], now: int) -> Cooperation:
        codec = RowCodec(self._codec)
        return Cooperation(events=[codec.event(replace(row, id=self._ids(now), created_at=now)) for row in rows])

    async def _submitted(self, op: ops.Op) -> bool:
        try:
            done: bool = await self._coordinator.submit(op)
        except CommitRefused:
            return False  # Somebody else has asked for the same at the same time.
        return done

    # Handlers, and those who do their work without an engine.

    async def handlers(self) -> dict[str, list[str]]:
        """Who is expected to handle messages: names of operations, by topic."""
        self._check_open()
        await self._book.load(again=True)
        return {
            topic: sorted(known.registered) for topic, known in sorted(self._book.topics.items()) if known.registered
        }

    async def register_handler(self, topic: Topic[Any] | str, name: str) -> None:
        """Have messages of a topic wait for a handler of this name, from now on, that no engine has: a person, another
        system. See `complete_handler`. Engines register their operations by themselves.

        Those who wait for handlers of the topic know of it when this returns. If the process dies before, they hear of
        it from the next engine with operations that is opened or finds it dead, or when this is called again.
        """
        self._check_open()
        pair = (_topic_name(topic), checked_text(name, "a handler's name"))
        await self._book.register([pair], self._clock.now())
        await self._invite()

    async def retire_handler(
        self, topic: Topic[Any] | str, name: str, *, release: bool = False, actor: str = "api"
    ) -> bool:
        """No longer expect a handler: messages that are emitted from now on do not wait for it. Those that wait already
        go on waiting, unless they are to `release` it: then what it has not begun by now it never begins.

        False if it was not expected. An engine that has it registers it again when it is opened. If the process dies
        before this returns, not all may be released: ask again, and the others are.
        """
        self._check_open()
        name = checked_text(name, "a handler's name")
        topic_name = _topic_name(topic)
        done = await self._patient_store.unregister(topic_name, name, at=self._clock.now())
        await self._book.load(again=True)
        if release:
            async for found in self._found(name, Status.CREATED, Status.RUNNING):  # One that runs may be held.
                await self._release(found, topic_name, actor)
        return done

    async def _release(self, found: StoredScopes, topic: str, actor: str) -> None:
        """Have those runs never begin that nobody has taken."""
        messages = {message.id: message.topic for message in found.messages}
        hierarchy = await in_turns(found.hierarchy_in_pieces())
        for run in found.runs.values():
            if found.statuses[run.id] not in _NOT_BEGUN or messages.get(run.message_id) != topic:
                continue
            view = hierarchy.view(run, self._clock.now())
            if view.events:
                continue
            writes = Writes(rows=dismiss(view))
            news = News(run.id, State.DISMISSED)
            with suppress(Misuse):  # Somebody has taken it meanwhile.
                await self._settle(view, writes, Status.CANCELLED, news, actor)

    async def _invite(self) -> None:
        """Tell those who wait for handlers of which they may not know, whoever registered these."""
        untold = self._book.untold
        if not untold:
            return
        topics = {topic for topic, _, _ in untold}
        # One that runs may be about to wait again, by the book as it was.
        async for found in self._found(None, *_AT_WORK):
            emitted = {message.id for message in found.messages if message.topic in topics}
            waiting = {row.cooperation_lineage[-1] for row in found.events if row.message_id in emitted}
            now = self._clock.now()
            for run in found.runs.values():
                if run.id in waiting and not run.is_call and found.statuses[run.id] in _AT_WORK:
                    await self._submitted(ops.Tell(run_id=run.id, at=now, kind=JOIN))
        await self._book.told(untold, self._clock.now())

    async def _found(self, handler: str | None, *statuses: Status) -> AsyncIterator[StoredScopes]:
        """What there is of operations' runs that are in one of these statuses."""
        after: tuple[int, str] | None = None
        wanted = RunFilter(workflow=handler, statuses=statuses, limit=_PAGE)
        while page := await self._patient_store.list(replace(wanted, after=after)):
            after = (page[-1].created_at, page[-1].id)
            if ids := [run.id for run in page if run.model == "operation"]:
                yield await self._read(await self._patient_store.scopes(ids))

    async def message(self, id: str) -> Any:
        """The message that the run of a handler is there for. Raises RunNotFound."""
        found = await self._scope(id)
        message_id = found.runs[id].message_id
        return msgspec.json.decode(next(one.payload for one in found.messages if one.id == message_id))

    async def complete_handler(self, id: str, values: Mapping[str, Any] | None = None, *, actor: str = "api") -> None:
        """Say that what the run of a handler was to do is done, by somebody outside, with the values that it returns.

        Raises RunNotFound, RunFinished; Misuse if its handler has taken it, or if its emitter rolls back.
        """
        checked_remark("", actor)
        view = await self._view(id)
        returned = tuple(
            ReturnValue(
                lineage=view.lineage,
                handler=view.handler,
                variable=checked_text(name, "the name of a value"),
                value=_json(value, name),
            )
            for name, value in (values or {}).items()
        )
        writes = complete(view, returned)
        news = News(id, State.COMMITTED, None, returned)
        await self._settle(view, writes, Status.SUCCEEDED, news, actor)

    async def fail_handler(self, id: str, reason: str, *, type: str = "Refused", actor: str = "api") -> None:
        """Say that what the run of a handler was to do cannot be done, and that nothing of it is left. Raises as
        `complete_handler`."""
        checked_remark(reason, actor)
        checked_text(type, "the type of a failure")
        view = await self._view(id)
        failure = Failure(type=type, message=reason, source=view.source)
        news = News(id, State.ROLLED_BACK, failure)
        await self._settle(view, fail(view, failure), Status.ROLLED_BACK, news, actor)

    async def complete_rollback(self, id: str, *, actor: str = "api") -> None:
        """Say that what somebody outside did for a handler is undone, as its emitter asked for. Raises RunNotFound,
        Misuse."""
        view = await self._view(id)
        news = News(id, State.ROLLED_BACK, None if view.told is None else view.told.exception)
        await self._settle(view, complete_rollback(view), Status.ROLLED_BACK, news, actor, Status.ROLLING_BACK)

    async def _view(self, id: str) -> OperationRun:
        found = await self._scope(id)
        hierarchy = await in_turns(found.hierarchy_in_pieces())
        return await in_turns(hierarchy.view_in_pieces(found.runs[id], self._clock.now()))

    async def _scope(self, id: str) -> StoredScopes:
        """What there is of one run. Raises RunNotFound."""
        self._check_open()
        found = await self._read(await self._patient_store.scopes([checked_text(id, "a run's id")]))
        if id not in found.runs:
            raise RunNotFound(id)
        return found

    async def _settle(
        self,
        view: OperationRun,
        writes: Writes,
        status: Status,
        news: News,
        actor: str,
        was: Status = Status.CREATED,
    ) -> None:
        now = self._clock.now()
        codec = RowCodec(self._codec)
        added = self._stamped(writes.rows, now)
        added.values += [codec.value(value) for value in writes.values]
        failure = None if news.failure is None else outcome_failure(news.failure)
        op = ops.Settle(
            run_id=view.lineage[-1],
            at=now,
            actor=actor,
            status=status,
            was=was,
            added=added,
            outcome=Outcome(output=self._codec.encode("null") if failure is None else None, failure=failure),
            answer=self._drafting.write_news(news),
            parent_id=view.lineage[-2] if len(view.lineage) > 2 else "",
        )
        if not await self._submitted(op):
            raise Misuse(f"run {op.run_id!r} was taken meanwhile by its handler", run_id=op.run_id)


def _is_handled_by(run: NewRun, root: str) -> bool:
    """Whether a run handles what was emitted under a root."""
    return is_root_run(run.lineage) and run.lineage[0] == root


def _place(found: StoredScopes, id: str) -> tuple[Lineage, str]:
    """The lineage that an id stands for, and its message; an empty one if there is none."""
    if id in found.runs:
        return found.runs[id].lineage, found.runs[id].message_id
    emitted = [row for row in found.events if row.cooperation_lineage == (id,)]
    return ((id,), emitted[0].message_id) if emitted else ((), "")


def _json(value: Any, name: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise UnstorableValue(f"the value {name!r} cannot be stored: {error}") from error


def _is_same(topic: Topic[Any], stored: str, payload: str) -> bool:
    """Whether two messages are equal, as JSON or as the topic reads them. One that was held back has no content."""
    if stored == "null" or canonical(msgspec.json.decode(stored)) == canonical(msgspec.json.decode(payload)):
        return True
    try:
        return canonical(topic.read(stored)) == canonical(topic.read(payload))
    except UnstorableValue:
        return False


def _topic_name(topic: Topic[Any] | str) -> str:
    return checked_text(topic, "a topic's name") if isinstance(topic, str) else topic.name


__all__ = ["Emitting", "RootHandle", "failure_of"]
