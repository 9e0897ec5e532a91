"""Sending events, and `engine.events`: the events that wait to be read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Struct

from perdure.coordinator.call_spans import whole_calls
from perdure.errors import InvalidArguments, RunFinished, RunNotFound
from perdure.kernel import ops
from perdure.kernel.events import Event as EventRecord
from perdure.kernel.rules.delivery import Delivered, Queued, Sent, TargetFinished, TargetNotFound, keyed
from perdure.models.functions.events import Event, NamedEvent, check_value, fields_of, options_of, value_of
from perdure.models.functions.tasks import is_reserved
from perdure.ports import PlainCodec
from perdure.session import Session
from perdure.values.arguments import check_fields, checked
from perdure.values.canonical import digest
from perdure.values.checks import checked_limit, checked_option, checked_text
from perdure.values.json import to_text
from perdure.views import EventView, event_view

LISTED_MAX: Final = 10_000
_MICROSECOND: Final = timedelta(microseconds=1)
_EXPIRED_FOR_US: Final = 60 * 1_000_000
_PURGED_AT_ONCE: Final = 1_000
_PURGES_MAX: Final = 20
_CONTENT_CHARS: Final = 16


class To(Struct, frozen=True):
    """An event for `send_many`, with the run that it is sent to. Without `to` the event is broadcast."""

    event: Event | NamedEvent
    to: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


async def send_event(
    session: Session, event: Event | NamedEvent, to: str | None, key: str | None, strict: bool, actor: str
) -> Delivered | Queued:
    """Send an event to a run, or broadcast it. See `Engine.send`."""
    session.check_open()
    sent: Sent = await session.coordinator.submit(_send_op(session, event, to, key, strict, actor))
    return received(sent, "nothing was sent to it")


async def send_events(session: Session, events: Iterable[To | Event | NamedEvent], actor: str) -> list[Sent]:
    """Send several events in shared commits. See `Engine.send_many`."""
    session.check_open()
    many = [one if isinstance(one, To) else To(one) for one in events]
    send_ops = [_send_op(session, one.event, one.to, one.key, False, actor) for one in many]
    replies = await session.coordinator.submit_batch(send_ops)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies


def received(sent: Sent, otherwise: str) -> Delivered | Queued:
    """Return the outcome of a send. Raises RunNotFound, RunFinished."""
    if isinstance(sent, TargetNotFound):
        raise RunNotFound(sent.run_id)
    if isinstance(sent, TargetFinished):
        raise RunFinished(
            f"run {sent.run_id!r} is {sent.status}: {otherwise}", run_id=sent.run_id, status=sent.status
        )  # fmt: skip
    return sent


def _send_op(
    session: Session, event: Event | NamedEvent, to: str | None, key: str | None, strict: bool, actor: str
) -> ops.Send:
    options = options_of(event)
    if is_reserved(options.name):
        raise InvalidArguments(f"{options.name!r} cannot be sent as an event: answer the task with tasks.answer(…)")
    text = to_text(value_of(event), f"the event {options.name!r}", session.limits.payload_bytes_max)
    check_value(event, text)
    checked_text(actor, "an actor")
    content = "" if key is None else digest({"name": options.name, "value": value_of(event), "to": to})
    now = session.clock.now()
    own = options.expire_after
    kept_us = session.event_retention_us if own is None else own // _MICROSECOND
    # A codec may encrypt the value, so its fields are not stored in plain text. Runs can select these events by name
    # only.
    fields = fields_of(msgspec.json.decode(text)) if isinstance(session.codec, PlainCodec) else {}
    record = EventRecord(
        id=keyed(session.ids(now), content[:_CONTENT_CHARS]) if content else session.ids(now),
        name=options.name,
        value=session.codec.encode(text),
        fields=fields,
        run_id=None if to is None else checked_text(to, "a run's id"),
        consumed=options.consume_on_read or to is not None,
        expires_at=now + kept_us,
        fallback=options.on_target_terminated,
        key=None if key is None else checked_text(key, "a key"),
        actor=actor,
        at=now,
    )
    pending_max = session.limits.events_pending_max
    return ops.Send(run_id=to or "", at=now, actor=actor, event=record, strict=strict, pending_max=pending_max)


@whole_calls()
@checked(constructor=False)
class Events:
    """Events that were sent and wait to be read."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def pending(self, *, name: str | None = None, to: str | None = None, limit: int = 100) -> list[EventView]:
        """Return events that wait to be read, in the order of sending.

        With `to`, return the events that were sent to that run. Without `to`, return the broadcast events.
        """
        session = self._session
        session.check_open()
        checked_option(name, "name")
        checked_option(to, "to")
        found = await session.caller_store.events(name=name, run_id=to, limit=checked_limit(limit, LISTED_MAX))
        now = session.clock.now()
        return [event_view(event, session.codec) for event in found if event.expires_at > now]

    async def purge(self) -> int:
        """Remove events that expired some time ago, idempotency keys older than the retention of events, and ended
        sessions of the dashboard. Return how many rows were removed.

        Engines do this regularly, for a bounded number of rows at a time. An event expires at its expiry time, whether
        or not it was purged.
        """
        session = self._session
        session.check_open()
        store, now = session.caller_store, session.clock.now()
        # A batch that is being decided right now may still deliver an event that expires right now.
        expired, keys_before = now - _EXPIRED_FOR_US, now - session.event_retention_us
        total = 0
        for _ in range(_PURGES_MAX):
            gone = await store.purge(at=expired, keys_before=keys_before, limit=_PURGED_AT_ONCE)
            total += gone
            if gone < _PURGED_AT_ONCE:
                break
        for _ in range(_PURGES_MAX):
            over = await store.purge_sessions(at=now, limit=_PURGED_AT_ONCE)
            total += over
            if over < _PURGED_AT_ONCE:
                break
        return total


__all__ = ["LISTED_MAX", "Events", "To", "received", "send_event", "send_events"]
