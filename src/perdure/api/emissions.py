"""Root emissions: messages that begin a hierarchy, through the coordinator or in a transaction of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.api.connections import insert_async
from perdure.api.root_handle import RootHandle
from perdure.coordinator.call_spans import one_call
from perdure.coordinator.caller_batches import insertable_emission
from perdure.errors import CommitRefused, HandlersChanged, InvalidArguments, Misuse, RunExists, UnstorableValue
from perdure.kernel import ops
from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.pieces import at_once
from perdure.models.cooperation.context import EMPTY, CancellationToken, Context
from perdure.models.cooperation.deadlines import bounded
from perdure.models.cooperation.live_run import Draft
from perdure.models.cooperation.scope import Emission, checked_emission
from perdure.models.cooperation.topics import Topic
from perdure.ports import TakenMessage
from perdure.session import Session
from perdure.values.arguments import Duration
from perdure.values.canonical import canonical
from perdure.values.checks import checked_remark, checked_tags, checked_text
from perdure.values.json import bytes_of

_AT_ONCE_CHARS: Final = 4 * 1024  # Longer messages are compared in a thread.


@one_call
async def emit_root(
    session: Session,
    topic: Topic[Any] | str,
    message: Any,
    *,
    id: str | None,
    context: Context = EMPTY,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[CancellationToken] = (),
    tags: Mapping[str, str] | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RootHandle:
    """Emit a message as the root of a hierarchy, and return its handle once it is durable. See `Engine.emit`."""
    session.check_open(to_start=True)
    if actor != "api":
        checked_remark("", actor)
    known_topic = await _topic_by_name(session, topic) if isinstance(topic, str) else topic
    checked_emission(known_topic, context)
    context = bounded(
        context,
        now=session.clock.now(),
        source="outside" if actor == "api" else actor,
        deadline=deadline,
        rollback_deadline=rollback_deadline,
        delay=delay,
        tokens=tokens,
    )
    payload, kept = known_topic.write(message), checked_tags(tags)
    known = None if id is None else await session.caller_store.emitted(checked_text(id, "a message's id"))
    if known is not None:
        return await _known_root(session, known, known_topic, payload)
    _check_size(f"a message on topic {known_topic.name!r}", payload, session)
    _check_size("the context", msgspec.json.encode(context.values).decode(), session)
    if connection is not None:
        return await _insert(session, known_topic, payload, id, context, kept, actor, connection)
    return await _emit(session, known_topic, payload, id, context=context, tags=kept, actor=actor)


def _check_size(what: str, text: str, session: Session) -> None:
    size, most = bytes_of(text), session.limits.payload_bytes_max
    if size > most:
        raise UnstorableValue(f"{what} has {size:,} bytes, and may have {most:,}")


async def suppress_emission(session: Session, topic: Topic[Any], id: str) -> RootHandle:
    """Make sure that a message is never handled, even if it is emitted later.

    If the message was emitted already, return its hierarchy instead.
    """
    session.check_open()
    if (known := await session.caller_store.emitted(checked_text(id, "a message's id"))) is not None:
        return await _known_root(session, known, topic)
    return await _emit(session, topic, "null", id, handled=False)


async def _topic_by_name(session: Session, name: str) -> Topic[Any]:
    """Return the topic with this name. The type of its messages is not checked, because only the handlers know it.
    Raises InvalidArguments if the topic has no handler: the name is probably misspelt, and the message would be
    lost."""
    await session.handlers.load(again=True)
    known = sorted(topic for topic, found in session.handlers.topics.items() if found.registered)
    if name not in known:
        names = ", ".join(repr(one) for one in known) or "none"
        raise InvalidArguments(f"the topic {name!r:.80} has no handler; topics that have one: {names:.1000}")
    anything: Any = Any
    return Topic(name, anything)


async def _insert(
    session: Session,
    topic: Topic[Any],
    payload: str,
    id: str | None,
    context: Context,
    tags: Mapping[str, str],
    actor: str,
    connection: object,
) -> RootHandle:
    """Emit a message in the caller's transaction.

    After the commit, engines that have the handlers' code take the runs.
    """
    emission = _new_emission(session, topic, payload, id, context)
    await session.handlers.load(again=True)
    while True:
        draft = session.operation_runner.emitter.emitted(emission, begins=False)
        batch = insertable_emission(_emit_op(session, draft, tags, actor), session.coordinator.engine)
        try:
            known = await insert_async(connection, session.caller_store.insertion(batch))
        except HandlersChanged:
            await session.handlers.load(again=True)
            continue
        if isinstance(known, TakenMessage):
            stored = await session.caller_store.emitted(known.message_id)
            if stored is None:
                raise Misuse(
                    f"message {known.message_id!r} was emitted before in this transaction, which is not committed: "
                    "use the handle that the first call returned",
                    run_id=known.scope,
                )
            return await _known_root(session, stored, topic, payload)
        return RootHandle(session, emission.root or "", emission.message_id, tuple(run.id for run in draft.runs))


async def _emit(
    session: Session,
    topic: Topic[Any],
    payload: str,
    id: str | None,
    *,
    handled: bool = True,
    context: Context = EMPTY,
    tags: Mapping[str, str] | None = None,
    actor: str = "api",
) -> RootHandle:
    emission = _new_emission(session, topic, payload, id, context)
    await session.handlers.load()
    while True:
        draft = session.operation_runner.emitter.emitted(emission, handled=handled)
        op = _emit_op(session, draft, tags or {}, actor)
        session.listener.expect(draft.began)
        try:
            await session.coordinator.submit(op)
        except HandlersChanged:
            await session.handlers.load(again=True)
        except CommitRefused:
            if id is None or (known := await session.caller_store.emitted(id)) is None:
                raise
            return await _known_root(session, known, topic, payload if handled else None)
        else:
            if op.members:
                await session.try_to_read_mail()
            run_ids = tuple(run.id for run in draft.runs)
            return RootHandle(session, emission.root or "", emission.message_id, run_ids)


def _new_emission(session: Session, topic: Topic[Any], payload: str, id: str | None, context: Context) -> Emission:
    now = session.clock.now()
    return Emission(
        message_id=session.ids(now) if id is None else id,
        topic=topic.name,
        payload=payload,
        context=context,
        root=session.ids(now),
    )


def _emit_op(session: Session, draft: Draft, tags: Mapping[str, str], actor: str) -> ops.Emit:
    now = session.clock.now()
    runner = session.operation_runner
    starts = at_once(runner.emitter.starts(draft, tags, now))
    if actor != "api":
        starts = tuple(replace(start, actor=actor) for start in starts)
    return ops.Emit(
        run_id="",
        at=now,
        actor=actor,
        added=at_once(runner.added(draft, now)),
        starts=starts,
        members=at_once(runner.emitter.members(draft, now)),
    )


async def _known_root(
    session: Session, known: MessageEventRow, topic: Topic[Any], payload: str | None = None
) -> RootHandle:
    """Return the hierarchy of a message that was emitted before. Raises RunExists if that message had another topic or
    another `payload`."""
    found = await session.caller_store.scopes([known.scope])
    message = next(one for one in found.messages if one.id == known.message_id)
    if message.topic != topic.name:
        raise RunExists(
            f"message {known.message_id!r} was emitted on topic {message.topic!r}, not on {topic.name!r}",
            run_id=known.scope,
        )
    if payload is not None and not await _is_same(topic, session.codec.decode(message.payload), payload):
        raise RunExists(
            f"message {known.message_id!r} was emitted on topic {topic.name!r} with another content: nothing was "
            "emitted. Use another id",
            run_id=known.scope,
        )
    run_ids = tuple(run.id for run in found.runs if run.parent_id == known.scope)
    return RootHandle(session, known.scope, known.message_id, run_ids)


async def _is_same(topic: Topic[Any], stored: str, payload: str) -> bool:
    """Whether two messages are equal, as JSON or as the topic reads them. A suppressed message has no content."""
    if stored in ("null", payload):
        return True
    is_large = max(len(stored), len(payload)) > _AT_ONCE_CHARS
    if await _are_equal(msgspec.json.decode(stored), msgspec.json.decode(payload), is_large=is_large):
        return True
    try:
        values = topic.read(stored), topic.read(payload)
    except UnstorableValue:
        return False
    return await _are_equal(*values, is_large=is_large)


async def _are_equal(one: Any, other: Any, *, is_large: bool) -> bool:
    if is_large:
        return await asyncio.to_thread(_have_one_form, one, other)
    return _have_one_form(one, other)


def _have_one_form(one: Any, other: Any) -> bool:
    return canonical(one) == canonical(other)


__all__ = ["emit_root", "suppress_emission"]
