"""What workflow code waits for: `receive` an event, or the `first` of events, a timer and ends of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeGuard, TypeVar, overload

import msgspec
from msgspec import Raw, Struct

from perdure.errors import ChildFailed, InvalidArguments, Misuse, RunCancelled, UnstorableValue
from perdure.kernel.records import Entry, Failure, Outcome, Run, Wait
from perdure.kernel.records import Event as EventRecord
from perdure.models.functions.commands import Ask
from perdure.models.functions.context import TimeReached, require_loop, timed_out
from perdure.models.functions.events import (
    Delivery,
    Event,
    NamedEvent,
    field_names,
    fields_of,
    options_of,
    read_event,
    where_of,
)
from perdure.models.functions.requests import NEVER_US
from perdure.ports import Codec, PlainCodec
from perdure.values.arguments import Duration, checked
from perdure.values.failures import rebuild
from perdure.values.json import Reader
from perdure.values.times import from_datetime, seconds_of, to_datetime

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=Event)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


_CANCELLED: Final = "perdure.errors:RunCancelled"
_WHY_MAX_CHARS: Final = 2_000  # of the failure of a child in the message of ChildFailed; its cause has all of it


class Choice(Generic[T_co]):
    """One of the things that `first` can wait for."""

    __slots__ = ()


class EventChoice(Choice[T_co]):
    """An event: of a class, or (`kind` None) of a name alone."""

    __slots__ = ("kind", "mode", "name", "where")

    def __init__(self, name: str, kind: type[Event] | None, where: tuple[tuple[str, str], ...], mode: str) -> None:
        self.name = name
        self.kind = kind
        self.where = where
        self.mode = mode


class TimerChoice(Choice[TimeReached]):
    """A point in time: absolute, or (`after`, in microseconds) from when the wait begins."""

    __slots__ = ("after", "at")

    def __init__(self, *, after: int = 0, at: int | None = None) -> None:
        self.after = after
        self.at = at


class RunEnded(Struct, Generic[T], frozen=True):
    """How a run that was waited for ended."""

    run_id: str
    status: str
    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Its result. Raises ChildFailed unless it succeeded."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class RunChoice(Choice[RunEnded[T]], Generic[T]):
    """The end of a run."""

    __slots__ = ("reader", "run_id")

    def __init__(self, run_id: str, reader: Reader | None) -> None:
        self.run_id = run_id
        self.reader = reader


class Waits(Struct, frozen=True):
    """What a request to wait is about. `due_at` are the times of the timers among the options, by their place."""

    options: tuple[Choice[Any], ...]
    due_at: dict[int, int]

    @property
    def has_event(self) -> bool:
        return any(isinstance(option, EventChoice) for option in self.options)

    def rows(self, run_id: str, ask: Ask) -> tuple[Wait, ...]:
        found: list[Wait] = []
        for index, option in enumerate(self.options):
            common: dict[str, Any] = {"run_id": run_id, "position": ask.position, "option": index, "since": ask.since}
            if isinstance(option, EventChoice):
                found.append(Wait(kind="event", name=option.name, where=option.where, mode=option.mode, **common))
            elif isinstance(option, RunChoice):
                found.append(Wait(kind="run", name="run", target=option.run_id, **common))
            else:
                found.append(Wait(kind="timer", name="timer", due_at=self.due_at[index], **common))
        return tuple(found)


_NO_VALUE: Final = Raw(b"")  # This very object is left out of the JSON; another one would leave a hole in it.


class Won(Struct, frozen=True, omit_defaults=True):
    """A wait's journal entry: which option won, and with what."""

    option: int
    event: str | None = None
    name: str | None = None
    sent_at: int | None = None
    value: Raw = _NO_VALUE
    due: int | None = None
    fired: int | None = None
    run: str | None = None
    status: str | None = None
    failure: Failure | None = None
    fallback: str = "discard"  # of the event: where it goes if a retry sets this entry aside and nobody reads it again


def won_by_event(event: EventRecord, option: int, codec: Codec) -> Won:
    value = Raw(codec.decode(event.value).encode())
    # What came from the queue of its name goes back there, but for a copy: the event itself is kept there.
    fallback = event.fallback if not event.shared else "broadcast" if event.consumed else "discard"
    return Won(
        option=option, event=event.id, name=event.name, sent_at=event.at, value=value, fallback=fallback
    )  # fmt: skip


def read_before(entries: Iterable[Entry], codec: Codec, kept_until: int) -> tuple[EventRecord, ...]:
    """The events that these entries of a journal have read, in the order of reading, for their run to read again.

    They were read in time, so they do not expire any more; but one that may go back to the queue of its name, which is
    everybody's, is kept until then."""
    found: list[EventRecord] = []
    for entry in entries:
        if entry.kind != "wait" or entry.value is None:
            continue
        won = msgspec.json.decode(codec.decode(entry.value), type=Won)
        if won.event is None or won.name is None:
            continue
        text = bytes(won.value).decode()
        found.append(
            EventRecord(
                id=won.event,
                name=won.name,
                value=codec.encode(text),
                fields=fields_of(msgspec.json.decode(text)) if isinstance(codec, PlainCodec) else {},
                run_id=entry.run_id,
                expires_at=kept_until if won.fallback == "broadcast" else NEVER_US - 1,
                fallback=won.fallback,
                at=won.sent_at or entry.at,
            )
        )
    return tuple(found)


def failed_before(entries: Iterable[Entry], codec: Codec) -> set[str]:
    """The runs whose failures a wait among these entries of a journal was handed."""
    texts = (entry.value for entry in entries if entry.kind == "wait" and entry.value is not None)
    ends = (msgspec.json.decode(codec.decode(text), type=Won) for text in texts)
    return {won.run for won in ends if won.run is not None and won.status == "failed"}


def started_before(entries: Iterable[Entry], codec: Codec) -> set[str]:
    """The children that these entries of a journal have started, or found started."""
    texts = (entry.value for entry in entries if entry.kind == "start" and entry.value is not None)
    return {msgspec.json.decode(codec.decode(text), type=str) for text in texts}


def read_won(waits: Waits, won: Won) -> Any:
    """What workflow code gets. Raises UnstorableValue if it does not fit the code any more."""
    if not 0 <= won.option < len(waits.options):
        raise UnstorableValue(f"the journal's wait was won by option {won.option}, and there are {len(waits.options)}")
    option = waits.options[won.option]
    if isinstance(option, EventChoice):
        text = bytes(won.value).decode()
        if option.where:
            _check_chosen(option, text)
        if option.kind is None:
            return NamedEvent(option.name, msgspec.json.decode(text))
        return read_event(option.kind, text, option.name)
    if isinstance(option, RunChoice):
        if won.run != option.run_id:
            raise UnstorableValue(f"the end that was waited for was that of run {won.run!r}, not of {option.run_id!r}")
        return _read_end(won, option.reader)
    return TimeReached(to_datetime(won.due or 0), to_datetime(won.fired or 0))


def _check_chosen(option: EventChoice[Any], text: str) -> None:
    """Raise UnstorableValue if the event is not one that the wait chooses: it was chosen by another filter."""
    fields = fields_of(msgspec.json.decode(text))
    for name, wanted in option.where:
        if fields.get(name) != wanted:
            was = fields.get(name, "something else")
            raise UnstorableValue(f"the event {option.name!r} that was read has {name}={was}, not {name}={wanted}")


def misfit_of(waits: Waits, won: Won) -> str:
    """What is wrong with the event that has won, for the class it is waited for by; empty if nothing is."""
    option = waits.options[won.option] if 0 <= won.option < len(waits.options) else None
    if not isinstance(option, EventChoice) or option.kind is None:
        return ""
    try:
        read_event(option.kind, bytes(won.value).decode(), option.name)
    except UnstorableValue as error:
        return str(error)
    return ""


def _read_end(won: Won, reader: Reader | None) -> RunEnded[Any]:
    target = won.run or ""
    if won.status == "succeeded":
        text = bytes(won.value).decode()
        value = msgspec.json.decode(text) if reader is None else reader.read(text, f"the result of run {target!r}")
        return RunEnded(target, "succeeded", value)
    error = ChildFailed(_how(target, won), run_id=target, status=won.status)
    if won.status == "cancelled" or (won.failure is not None and won.failure.type == _CANCELLED):
        reason = None if won.failure is None else won.failure.message
        error.__cause__ = RunCancelled(f"run {target!r} was cancelled: {reason}", run_id=target, reason=reason)
    elif won.failure is not None:
        error.__cause__ = rebuild(won.failure, run_id=target)
    return RunEnded(target, won.status or "", None, error)


def _how(target: str, won: Won) -> str:
    if won.status == "missing":
        return f"there is no run {target!r} to wait for"
    why = "" if won.failure is None else won.failure.message
    if len(why) > _WHY_MAX_CHARS:  # It has the reason of the child's child in it, and so on down: keep both ends.
        why = f"{why[: _WHY_MAX_CHARS // 2]} … {why[-_WHY_MAX_CHARS // 2 :]}"
    return f"run {target!r} ended as {won.status}" + (f": {why}" if won.failure is not None else "")


def won_by_end(option: int, target: str, ended: tuple[Run, Outcome] | None, codec: Codec) -> Won:
    """The run waited for has ended (None: there is none)."""
    if ended is None:
        return Won(option=option, run=target, status="missing")
    run, outcome = ended
    failure = None if outcome.failure is None else msgspec.json.decode(outcome.failure, type=Failure)
    value = _NO_VALUE if outcome.output is None else Raw(codec.decode(outcome.output).encode())
    return Won(option=option, run=target, status=run.status.value, value=value, failure=failure)


def child_failed(target: str, ended: tuple[Run, Outcome] | None, codec: Codec) -> ChildFailed:
    """What awaiting a child raises if it did not succeed."""
    error = _read_end(won_by_end(0, target, ended, codec), None).error
    assert isinstance(error, ChildFailed)
    return error


# ---------------------------------------------------------------------------------------------------------------------
# What workflow code calls


@checked
def timer(
    duration: Duration = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> TimerChoice:
    """A timer for `first`, from when the wait begins. Numbers are seconds."""
    more = days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds
    in_all = seconds_of(seconds_of(duration, "timer") + more, "timer")
    return TimerChoice(after=max(0, round(in_all * 1_000_000)))


@checked
def timer_at(when: datetime) -> TimerChoice:
    """A point in time for `first`; one in the past is reached at once."""
    return TimerChoice(at=from_datetime(when))


@overload
def event(
    kind: type[E], *, where: Mapping[str, Any] | None = None, delivery: Delivery | None = None
) -> EventChoice[E]: ...
@overload
def event(
    kind: str, *, where: Mapping[str, Any] | None = None, delivery: Delivery | None = None
) -> EventChoice[NamedEvent]: ...
@checked
def event(
    kind: type[Any] | str, *, where: Mapping[str, Any] | None = None, delivery: Delivery | None = None
) -> EventChoice[Any]:
    """An event for `first`, chosen by its fields (`where={"order": "o-17"}`), or by its name alone."""
    if isinstance(kind, str):
        options = options_of(NamedEvent(kind))
        return EventChoice(options.name, None, where_of(where, f"event {kind!r}"), delivery or options.delivery)
    if not _is_event(kind):
        raise InvalidArguments(f"wait for a subclass of Event, or for a name, not for {kind!r:.80}")
    options = options_of(kind)
    chosen = where_of(where, f"event {options.name!r}")
    if chosen and (unknown := sorted({name for name, _ in chosen} - field_names(kind))):
        raise InvalidArguments(f"event {options.name!r} has no field {unknown[0]!r} to choose by")
    return EventChoice(options.name, kind, chosen, delivery or options.delivery)


def _is_event(kind: object) -> TypeGuard[type[Event]]:
    return isinstance(kind, type) and issubclass(kind, Event)


@overload
async def receive(kind: type[E], *, timeout: Duration | None = None, where: Mapping[str, Any] | None = None) -> E: ...
@overload
async def receive(kind: str, *, timeout: Duration | None = None, where: Mapping[str, Any] | None = None) -> Any: ...
@checked
async def receive(
    kind: type[Any] | str, *, timeout: Duration | None = None, where: Mapping[str, Any] | None = None
) -> Any:
    """Wait durably for an event: the typed one, or the value of a named one. Raises TimeoutError if it does not come
    within `timeout`."""
    chosen = event(kind, where=where)
    if timeout is None:
        got = await require_loop("receive").ask("wait", chosen.name, Waits((chosen,), {}))
    else:
        got = await _wait(chosen, timer(timeout))
        if isinstance(got, TimeReached):
            raise timed_out(TimeoutError(f"no event {chosen.name!r} came within {timeout}"))
    return got.value if isinstance(got, NamedEvent) else got


@overload
async def first(a: type[A] | Choice[A], /) -> A: ...
@overload
async def first(a: type[A] | Choice[A], b: type[B] | Choice[B], /) -> A | B: ...
@overload
async def first(a: type[A] | Choice[A], b: type[B] | Choice[B], c: type[C] | Choice[C], /) -> A | B | C: ...
@overload
async def first(
    a: type[A] | Choice[A], b: type[B] | Choice[B], c: type[C] | Choice[C], d: type[D] | Choice[D], /
) -> A | B | C | D: ...
@overload
async def first(*choices: type[Any] | Choice[Any]) -> Any: ...
@checked
async def first(*choices: type[Any] | Choice[Any]) -> Any:
    """Wait durably for whichever comes first: events, a timer, ends of runs. What wins is journaled; the others are no
    longer waited for, and events that come later stay queued. Of several timers the earliest counts."""
    if not choices:
        raise InvalidArguments("first() needs something to wait for: event classes, timer(…), runs")
    return await _wait(*(choice if isinstance(choice, Choice) else event(choice) for choice in choices))


async def _wait(*choices: Choice[Any]) -> Any:
    loop = require_loop("receive" if len(choices) == 1 else "first")
    due: dict[int, int] = {}
    for index, choice in enumerate(choices):
        if isinstance(choice, RunChoice) and choice.run_id == loop.run_id:
            raise Misuse(f"run {loop.run_id!r} cannot wait for its own end: it would wait for ever")
        if isinstance(choice, RunChoice) and choice.run_id == loop.awaited_by and len(choices) == 1:
            raise Misuse(
                f"run {loop.run_id!r} cannot wait for the end of run {choice.run_id!r}, which awaits it: each would "
                "wait for the other for ever. Start the child with `start`, or send its parent an event"
            )
        if isinstance(choice, TimerChoice):
            due[index] = loop.now() + choice.after if choice.at is None else choice.at
    earliest = min(due, key=lambda index: due[index], default=None)
    options = tuple(c for i, c in enumerate(choices) if not isinstance(c, TimerChoice) or i == earliest)
    due_at = {i: due[earliest] for i, c in enumerate(options) if isinstance(c, TimerChoice) and earliest is not None}
    return await loop.ask("wait", " or ".join(map(_named, options)), Waits(options, due_at))


def _named(choice: Choice[Any]) -> str:
    if isinstance(choice, EventChoice):
        return choice.name
    return "run" if isinstance(choice, RunChoice) else "timer"
