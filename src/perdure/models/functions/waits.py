"""Waits of workflow code: `receive` waits for an event. `first` waits for the first of several events, timers and ends
of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any, Final, Generic, TypeGuard, TypeVar, overload

import msgspec
from msgspec import Raw, Struct

from perdure.errors import ChildFailed, InvalidArguments, Misuse, RunCancelled, UnstorableValue
from perdure.kernel.events import Event as EventRecord
from perdure.kernel.failures import Failure
from perdure.kernel.rows import Entry, Wait
from perdure.kernel.runs import Outcome, Run
from perdure.models.common.stored_failures import read_failure
from perdure.models.functions.commands import Ask
from perdure.models.functions.context import require_loop, timed_out
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
from perdure.models.functions.positions import NEVER_US
from perdure.models.functions.timers import TimeReached
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


_OR: Final = " or "
_NAMES_MAX: Final = 16
_CANCELLED: Final = "perdure.errors:RunCancelled"
# characters of a child's failure in the message of ChildFailed; its cause has the whole failure
_WHY_MAX_CHARS: Final = 2_000


class Choice(Generic[T_co]):
    """An option that `first` can wait for."""

    __slots__ = ()


class EventChoice(Choice[T_co]):
    """An event of a class, or an event that has only a name (`kind` is None)."""

    __slots__ = ("kind", "mode", "name", "where")

    def __init__(self, name: str, kind: type[Event] | None, where: tuple[tuple[str, str], ...], mode: str) -> None:
        self.name = name
        self.kind = kind
        self.where = where
        self.mode = mode


class TimerChoice(Choice[TimeReached]):
    """A point in time. It is absolute, or relative to the beginning of the wait (`after`, in microseconds)."""

    __slots__ = ("after", "at")

    def __init__(self, *, after: int = 0, at: int | None = None) -> None:
        self.after = after
        self.at = at


class RunEnded(Struct, Generic[T], frozen=True):
    """The end of a run that workflow code has waited for."""

    run_id: str
    status: str
    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Return the run's result. Raises ChildFailed unless the run succeeded."""
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
    """The options of a wait. `due_at` has the times of the timers among the options, by the index of the option."""

    options: tuple[Choice[Any], ...]
    due_at: dict[int, int]

    @property
    def has_event(self) -> bool:
        return any(isinstance(option, EventChoice) for option in self.options)

    @property
    def is_for_runs(self) -> bool:
        """Whether only the end of a run can win the wait."""
        return all(isinstance(option, RunChoice) for option in self.options)

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


# Only this object is left out of the JSON. Any other empty Raw would make the JSON invalid.
_NO_VALUE: Final = Raw(b"")


class Won(Struct, frozen=True, omit_defaults=True):
    """The value of a wait's journal entry: the option that won the wait, and its value."""

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
    fallback: str = "discard"  # where the event goes if a retry sets this entry aside and no run reads the event again


def won_by_event(event: EventRecord, option: int, codec: Codec) -> Won:
    value = Raw(codec.decode(event.value).encode())
    # An event from the queue of its name goes back to that queue. A copy of an event does not go back, because the
    # event itself is still in the queue.
    fallback = event.fallback if not event.shared else "broadcast" if event.consumed else "discard"
    return Won(
        option=option, event=event.id, name=event.name, sent_at=event.at, value=value, fallback=fallback
    )  # fmt: skip


def read_before(entries: Iterable[Entry], codec: Codec, kept_until: int) -> tuple[EventRecord, ...]:
    """Return the events that these journal entries have read, in the order of reading. The run will read them again.

    These events were read in time, so they no longer expire. All runs share the queue of an event's name. An event that
    may go back to this queue is kept until `kept_until`.
    """
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
    """Return the runs whose failures were handed to a wait in these journal entries."""
    texts = (entry.value for entry in entries if entry.kind == "wait" and entry.value is not None)
    ends = (msgspec.json.decode(codec.decode(text), type=Won) for text in texts)
    return {won.run for won in ends if won.run is not None and won.status == "failed"}


def started_before(entries: Iterable[Entry], codec: Codec) -> set[str]:
    """Return the children that these journal entries have started, or have found already started."""
    texts = (entry.value for entry in entries if entry.kind == "start" and entry.value is not None)
    return {msgspec.json.decode(codec.decode(text), type=str) for text in texts}


def read_won(waits: Waits, won: Won) -> Any:
    """Return the value that workflow code gets from a wait. Raises UnstorableValue if the value no longer fits the
    code."""
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
    """Check that an event passes the filter of its wait. The event may have been read with another filter. Raises
    UnstorableValue.
    """
    fields = fields_of(msgspec.json.decode(text))
    for name, wanted in option.where:
        if fields.get(name) != wanted:
            was = fields.get(name, "something else")
            raise UnstorableValue(f"the event {option.name!r} that was read has {name}={was}, not {name}={wanted}")


def misfit_of(waits: Waits, won: Won) -> str:
    """Return why the event that has won a wait does not fit the event class of the wait. Return "" if it fits."""
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
    # The text contains the reasons of the child's children, and so on. Keep the beginning and the end.
    if len(why) > _WHY_MAX_CHARS:
        why = f"{why[: _WHY_MAX_CHARS // 2]} … {why[-_WHY_MAX_CHARS // 2 :]}"
    return f"run {target!r} ended as {won.status}" + (f": {why}" if won.failure is not None else "")


def won_by_end(option: int, target: str, ended: tuple[Run, Outcome] | None, codec: Codec) -> Won:
    """Return the value of the journal entry for a wait that the end of a run has won. `ended` is None if the run does
    not exist.
    """
    if ended is None:
        return Won(option=option, run=target, status="missing")
    run, outcome = ended
    failure = None if outcome.failure is None else read_failure(outcome.failure, codec)
    value = _NO_VALUE if outcome.output is None else Raw(codec.decode(outcome.output).encode())
    return Won(option=option, run=target, status=run.status.value, value=value, failure=failure)


def child_failed(target: str, ended: tuple[Run, Outcome] | None, codec: Codec) -> ChildFailed:
    """Return the error that awaiting a child raises if the child did not succeed."""
    error = _read_end(won_by_end(0, target, ended, codec), None).error
    assert isinstance(error, ChildFailed)
    return error


# ---------------------------------------------------------------------------------------------------------------------
# What workflow code calls


@checked
def timer(
    duration: Duration = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> TimerChoice:
    """Return a timer for `first`. The timer starts when the wait begins. A number means seconds."""
    more = days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds
    in_all = seconds_of(seconds_of(duration, "timer") + more, "timer")
    return TimerChoice(after=max(0, round(in_all * 1_000_000)))


@checked
def timer_at(when: datetime) -> TimerChoice:
    """Return a point in time for `first`. A time in the past is reached at once."""
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
    """Return an event for `first`. Pass an event class, or the name of an event that has no class.

    `where={"order": "o-17"}` selects events by the values of their fields. Raises InvalidArguments.
    """
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
    """Wait durably for an event, and return it. If you pass a name instead of a class, return the event's value.

    Raises TimeoutError if no event comes within `timeout`. Raises InvalidArguments, NotInWorkflow.
    """
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
    """Wait durably for the first of several choices: events, timers, ends of runs.

    The winner is journaled. After that, the run no longer waits for the other choices. Events that come later stay
    queued. If there are several timers, the earliest counts.

    Each choice is a row in the store while the run waits. To handle the ends of many runs one after the other, use
    `asyncio.as_completed([run.result() for run in runs])`. It waits once for each run. A loop over `first(*runs)` waits
    for all remaining runs each time.
    """
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
    return await loop.ask("wait", short_name(" or ".join(map(_named, options))), Waits(options, due_at))


def short_name(name: str) -> str:
    """Return the name of a wait. If the wait has many options, equal options in a row are counted.

    Otherwise the journal could get a thousand long names, for example in a run that waits for the first of a thousand
    children, then for the first of the remaining children, and so on.
    """
    if name.count(_OR) < _NAMES_MAX:
        return name
    runs = ((one, sum(1 for _ in same)) for one, same in groupby(name.split(_OR)))
    return _OR.join(one if count == 1 else f"{one} ×{count}" for one, count in runs)


def _named(choice: Choice[Any]) -> str:
    if isinstance(choice, EventChoice):
        return choice.name
    return "run" if isinstance(choice, RunChoice) else "timer"
