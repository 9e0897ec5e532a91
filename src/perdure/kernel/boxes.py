"""What a run waits for and what has been sent to it: which of the two meet. Pure.

Only events sent to the run itself are matched here. Broadcasts are everybody's, so they are matched inside the
transaction (matching.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.records import Event, Wait


class Box(Struct, frozen=True, kw_only=True, gc=False):
    """A run's waits with an event or the end of a run among their options, by position, in the order of waiting; its
    events, in the order of sending; and what has won at which position: the option, and the event's id (None: a timer,
    or the end of a run)."""

    waits: Mapping[str, tuple[Wait, ...]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    won: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)


EMPTY = Box()


def is_open(box: Box, position: str) -> bool:
    """Whether the run waits there and nothing has won yet."""
    return position in box.waits and position not in box.won


def accepts(wait: Wait, event: Event) -> bool:
    return (
        wait.kind == "event"
        and wait.name == event.name
        and (not wait.where or all(event.fields.get(name) == value for name, value in wait.where))
    )


def opened(waits: Iterable[Wait], events: Iterable[Event]) -> Box:
    """A run's box as it is stored."""
    ordered = tuple(sorted(events, key=lambda event: event.number))
    groups = _watched(sorted(waits, key=lambda wait: (wait.number, wait.position, wait.option)))
    won: dict[str, tuple[int, str | None]] = {
        position: (group[0].option, None)
        for position, group in groups.items()
        if any(wait.target is not None and wait.due_at == 0 for wait in group)
    }
    won |= {event.position: (event.option, event.id) for event in ordered if event.position is not None}
    return Box(waits=groups, events=ordered, won=won)


def put(box: Box, event: Event) -> tuple[Box, Event]:
    """Add an event: to the position that it wins, the one that was opened first, or to those that wait."""
    for position, group in box.waits.items():
        if position not in box.won:
            for wait in group:
                if accepts(wait, event):
                    given = replace(event, position=position, option=wait.option)
                    won = {**box.won, position: (wait.option, event.id)}
                    return replace(box, events=(*box.events, given), won=won), given
    return replace(box, events=(*box.events, event)), event


def give(box: Box, event: Event) -> Box:
    """Add an event that has won elsewhere, in the transaction."""
    if event.position is None or any(known.id == event.id for known in box.events):
        return box
    return replace(box, events=(*box.events, event), won={**box.won, event.position: (event.option, event.id)})


def add_waits(box: Box, waits: Iterable[Wait]) -> Box:
    """Open positions: those that have an event or the end of a run among their options."""
    groups = _watched(waits)
    if not groups:
        return box
    won = box.won
    if won and not groups.keys().isdisjoint(won):  # A position that is opened anew has not been won.
        won = {position: by for position, by in won.items() if position not in groups}
    return replace(box, waits={**box.waits, **groups}, won=won)


def settle(box: Box, now: int) -> tuple[Box, list[Event]]:
    """Let open positions, in the order of opening, be won by the earliest sent of the events that wait; the winners."""
    if not box.events or len(box.waits) == len(box.won):
        return box, []
    won = dict(box.won)
    events = list(box.events)
    winners: list[Event] = []
    for position, group in box.waits.items():
        if position in won:
            continue
        for index, event in enumerate(events):
            if event.position is not None or event.expires_at <= now:
                continue
            option = next((wait.option for wait in group if accepts(wait, event)), None)
            if option is not None:
                events[index] = given = replace(event, position=position, option=option)
                won[position] = (option, event.id)
                winners.append(given)
                break
    return replace(box, events=tuple(events), won=won), winners


def _watched(waits: Iterable[Wait]) -> dict[str, tuple[Wait, ...]]:
    groups: dict[str, tuple[Wait, ...]] = {}
    for wait in waits:
        groups[wait.position] = (*groups.get(wait.position, ()), wait)
    return {
        position: group for position, group in groups.items() if any(wait.kind in ("event", "run") for wait in group)
    }


def fire(box: Box, position: str, option: int) -> Box:
    """A timer, or the end of a run, wins a position that is open."""
    return replace(box, won={**box.won, position: (option, None)})


def close(box: Box, positions: Collection[str], read: Collection[str]) -> Box:
    """Positions are done with, and these events are read. What had won there without being read waits on if it was sent
    to this run; if not, it goes back to where it came from."""
    events = tuple(
        replace(event, position=None) if event.position in positions else event
        for event in box.events
        if event.id not in read and not (event.shared and event.position in positions)
    )
    # Copied whole and then taken from: a parent of a thousand children does this for every one of them.
    waits, won = dict(box.waits), dict(box.won)
    for position in positions:
        waits.pop(position, None)
        won.pop(position, None)
    return Box(waits=waits, events=events, won=won) if waits or events else EMPTY


def learn(box: Box, stored: Box) -> tuple[Box, list[tuple[Wait, Event | None]]]:
    """Take over what has won in other engines' transactions, according to the store; the winners.

    A position that something else has won here meanwhile, or that is done with, stays as it is: what lost is freed when
    the store forgets the position.
    """
    winners: list[tuple[Wait, Event | None]] = []
    events = {event.id: event for event in stored.events}
    for position, (option, event_id) in stored.won.items():
        if is_open(box, position):
            event = None if event_id is None else events[event_id]
            box = fire(box, position, option) if event is None else give(box, event)
            winners.append((next(wait for wait in stored.waits[position] if wait.option == option), event))
    return box, winners


def hop(box: Box, read: Collection[str]) -> Box:
    """Nothing is waited for any more; what was sent to the run waits on."""
    return close(box, box.waits.keys(), read)


def pending(box: Box, name: str, now: int) -> int:
    """How many events of this name wait to be read and have not expired."""
    return sum(event.name == name and event.position is None and event.expires_at > now for event in box.events)


def without_expired(box: Box, now: int) -> Box:
    """Forget events that nobody can be given any more; the store forgets them in its own time."""
    if all(event.position is not None or event.expires_at > now for event in box.events):
        return box
    kept = tuple(event for event in box.events if event.position is not None or event.expires_at > now)
    return replace(box, events=kept)
