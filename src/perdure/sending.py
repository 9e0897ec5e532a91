"""The engine's verbs for events: sending them, and looking after those that reached nobody."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec
from msgspec import Struct

from perdure.arguments import check_fields, checked
from perdure.coordinator.coordinator import Coordinator
from perdure.errors import DeadLetterNotFound, InvalidArguments, RunFinished, RunNotFound
from perdure.kernel import ops
from perdure.kernel.delivery import Delivered, Queued, Sent, TargetFinished, TargetNotFound, keyed
from perdure.kernel.records import DeadLetter
from perdure.kernel.records import Event as EventRecord
from perdure.models.functions.assigning import is_reserved
from perdure.models.functions.canonical import digest
from perdure.models.functions.checks import checked_limit, checked_option, checked_text
from perdure.models.functions.events import (
    Event,
    EventOptions,
    NamedEvent,
    check_text,
    check_value,
    fields_of,
    options_of,
    value_of,
)
from perdure.models.functions.values import to_text
from perdure.ports import Clock, Codec, Ids, PlainCodec, Store
from perdure.views import DeadLetterView, EventView, dead_letter_view, event_view

RETENTION = timedelta(days=7)
PENDING_MAX = 10_000
_MICROSECOND = timedelta(microseconds=1)
_EXPIRED_FOR_US = 60 * 1_000_000
_PURGED_AT_ONCE = 1_000
_PURGES_MAX = 20
_CONTENT_CHARS = 16
_LISTED_MAX = 10_000


class To(Struct, frozen=True):
    """An event and who it is for, for `send_many`."""

    event: Event | NamedEvent
    to: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@checked
class Sending:
    """What an engine that has these parts can do with events."""

    _coordinator: Coordinator
    _patient_store: Store
    _clock: Clock
    _codec: Codec
    _ids: Ids
    _payload_bytes_max: int
    _event_retention: timedelta
    _events_pending_max: int

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    async def send(
        self,
        event: Event | NamedEvent,
        *,
        to: str | None = None,
        key: str | None = None,
        strict: bool = False,
        actor: str = "api",
    ) -> Delivered | Queued:
        """Send an event to a run, or, without `to`, to whoever waits for it; who has got it, once that is durable.

        A run that does not wait for it finds it in its queue when it does; `strict` raises RunNotWaiting instead. With
        a `key` it is sent once, however often this is called; another event under the same key raises KeyReused. Raises
        RunNotFound, RunFinished, QueueFull, UnstorableValue, and InvalidArguments if the event does not fit its class,
        or the class that this process knows by its name.
        """
        self._check_open()
        sent: Sent = await self._coordinator.submit(self._send_op(event, to, key, strict, actor))
        if isinstance(sent, TargetNotFound):
            raise RunNotFound(sent.run_id)
        if isinstance(sent, TargetFinished):
            raise RunFinished(
                f"run {sent.run_id!r} is {sent.status}: nothing was sent to it", run_id=sent.run_id, status=sent.status
            )
        return sent

    async def send_many(self, events: Iterable[To | Event | NamedEvent], *, actor: str = "api") -> list[Sent]:
        """Send several events, which share commits; what became of each. Raises, after all were sent, what one was
        refused with."""
        self._check_open()
        many = [one if isinstance(one, To) else To(one) for one in events]
        send_ops = [self._send_op(one.event, one.to, one.key, False, actor) for one in many]
        replies = await self._coordinator.submit_batch(send_ops)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    def _send_op(
        self, event: Event | NamedEvent, to: str | None, key: str | None, strict: bool, actor: str
    ) -> ops.Send:
        options = options_of(event)
        if is_reserved(options.name):
            raise InvalidArguments(f"{options.name!r} is no event to be sent: answer the task with answer(…)")
        text = to_text(value_of(event), f"the event {options.name!r}", self._payload_bytes_max)
        check_value(event, text)
        content = "" if key is None else digest({"name": options.name, "value": value_of(event), "to": to})
        return self._op(options, text, to, key, strict, checked_text(actor, "an actor"), content)

    def _op(
        self,
        options: EventOptions,
        text: str,
        to: str | None,
        key: str | None,
        strict: bool,
        actor: str,
        content: str,
    ) -> ops.Send:
        now = self._clock.now()
        kept = options.expire_after or self._event_retention
        # What a codec hides is not shown beside it; such events can be chosen by name alone.
        fields = fields_of(msgspec.json.decode(text)) if isinstance(self._codec, PlainCodec) else {}
        record = EventRecord(
            id=keyed(self._ids(now), content[:_CONTENT_CHARS]) if content else self._ids(now),
            name=options.name,
            value=self._codec.encode(text),
            fields=fields,
            run_id=None if to is None else checked_text(to, "a run's id"),
            consumed=options.consume_on_read or to is not None,
            expires_at=now + kept // _MICROSECOND,
            fallback=options.on_target_terminated,
            key=None if key is None else checked_text(key, "a key"),
            actor=actor,
            at=now,
        )
        return ops.Send(
            run_id=to or "", at=now, actor=actor, event=record, strict=strict, pending_max=self._events_pending_max
        )

    async def events(self, *, name: str | None = None, to: str | None = None, limit: int = 100) -> list[EventView]:
        """Events that wait to be read, in the order of sending: those sent to a run, or those for anybody."""
        self._check_open()
        checked_option(name, "name")
        checked_option(to, "to")
        found = await self._patient_store.events(name=name, run_id=to, limit=checked_limit(limit, _LISTED_MAX))
        now = self._clock.now()
        return [event_view(event, self._codec) for event in found if event.expires_at > now]

    async def purge(self) -> int:
        """Forget events that expired a while ago, keys older than the retention of events, and sessions of the
        dashboard that are over; how many.

        Done regularly, a bounded number at a time. Whether an event has expired never depends on it.
        """
        self._check_open()
        now = self._clock.now()
        kept = self._event_retention // _MICROSECOND
        total = 0
        for _ in range(_PURGES_MAX):
            # What is being decided now may still be given what expires now.
            gone = await self._patient_store.purge(
                at=now - _EXPIRED_FOR_US, keys_before=now - kept, limit=_PURGED_AT_ONCE
            )
            total += gone
            if gone < _PURGED_AT_ONCE:
                break
        for _ in range(_PURGES_MAX):
            over = await self._patient_store.purge_sessions(at=now, limit=_PURGED_AT_ONCE)
            total += over
            if over < _PURGED_AT_ONCE:
                break
        return total

    # Dead letters.

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetterView]:
        """Events whose run ended before it read them, oldest first; `after` is the id of the last one seen."""
        self._check_open()
        checked_option(name, "name")
        checked_option(after, "after")
        letters = await self._patient_store.letters(name=name, after=after, limit=checked_limit(limit, _LISTED_MAX))
        return [dead_letter_view(letter, self._codec) for letter in letters]

    async def dead_letter(self, id: str) -> DeadLetterView:
        """One dead letter. Raises DeadLetterNotFound."""
        self._check_open()
        return dead_letter_view(await self._letter(id), self._codec)

    async def replay_dead_letter(self, id: str, *, to: str | None = None, actor: str = "api") -> Delivered | Queued:
        """Send a dead letter again: to a run, or to whoever waits. It is a dead letter no more once that is durable.

        Raises DeadLetterNotFound, RunNotFound, RunFinished, and InvalidArguments if it does not fit the class that
        this process knows by its name; then it stays where it is.
        """
        self._check_open()
        letter = await self._letter(id)
        check_text(letter.name, self._codec.decode(letter.value))
        now = self._clock.now()
        record = EventRecord(
            id=letter.id,
            name=letter.name,
            value=letter.value,
            fields=letter.fields,
            run_id=None if to is None else checked_text(to, "a run's id"),
            consumed=letter.consumed or to is not None,
            expires_at=now + self._event_retention // _MICROSECOND,
            fallback="dead_letter",
            actor=actor,
            at=letter.at,
        )
        sent = await self._coordinator.submit(
            ops.Send(
                run_id=to or "",
                at=now,
                actor=actor,
                event=record,
                letter=letter.id,
                pending_max=self._events_pending_max,
            )
        )
        if isinstance(sent, TargetNotFound):
            raise RunNotFound(sent.run_id)
        if isinstance(sent, TargetFinished):
            raise RunFinished(
                f"run {sent.run_id!r} is {sent.status}: the dead letter stays", run_id=sent.run_id, status=sent.status
            )
        assert isinstance(sent, (Delivered, Queued))
        return sent

    async def remove_dead_letter(self, id: str, *, actor: str = "api") -> bool:
        """Forget a dead letter. False if there is none."""
        self._check_open()
        checked_text(actor, "an actor")
        op = ops.Forget(run_id="", at=self._clock.now(), actor=actor, letter=checked_text(id, "a dead letter's id"))
        try:
            return bool(await self._coordinator.submit(op))
        except DeadLetterNotFound:
            return False

    async def _letter(self, id: str) -> DeadLetter:
        letter = await self._patient_store.letter(checked_text(id, "a dead letter's id"))
        if letter is None:
            raise DeadLetterNotFound(f"there is no dead letter {id!r}: it was replayed or removed", letter_id=id)
        return letter


__all__ = ["PENDING_MAX", "RETENTION", "Sending", "To"]
