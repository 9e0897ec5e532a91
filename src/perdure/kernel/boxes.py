"""What a run waits for and what has been sent to it: which of the two meet. Pure.

Only events sent to the run itself are matched here. Broadcasts are everybody's, so they are matched inside the
transaction (matching.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.records import Event, Wait


class Box(Struct, frozen=True, kw_only=True, gc=False):
    """A run's waits with an event among their options, by position, in the order of waiting; its events, in the order
    of sending; and what has won at which position: the option, and the event's id (None: a timer, or the end of a run).

    A position that has no event among its options is not in `waits`, since nothing here could win it: a parent may wait
    for a thousand children. It is in `won` once one of them has ended.
    """

    waits: dict[str, tuple[Wait, ...]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    won: dict[str, tuple[int, str | None]] = field(default_factory=dict)


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


def opened(waits: Collection[Wait], events: Iterable[Event]) -> Box:
    """A run's box as it is stored."""
    ordered = tuple(sorted(events, key=lambda event: event.number))
    groups = _watched(sorted(waits, key=lambda wait: (wait.number, wait.position, wait.option)))
    won: dict[str, tuple[int, str | None]] = {
        wait.position: (wait.option, None) for wait in waits if wait.target is not None and wait.due_at == 0
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


def add_waits(box: Box, waits: Collection[Wait]) -> Box:
    """Open positions."""
    groups = _watched(waits)
    won = box.won
    if won and waits:  # A position that is opened anew has not been won.
        anew = {wait.position for wait in waits}
        if not anew.isdisjoint(won):
            won = {position: by for position, by in won.items() if position not in anew}
    if not groups and won is box.won:
        return box
    return replace(box, waits={**box.waits, **groups}, won=won)


def settle(box: Box, now: int) -> tuple[Box, list[Event]]:
    """Let open positions, in the order of opening, be won by the earliest sent of the events that wait; the winners."""
    if not box.events or box.waits.keys() <= box.won.keys():
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


def _watched(waits: Collection[Wait]) -> dict[str, tuple[Wait, ...]]:
    watched = {wait.position for wait in waits if wait.kind == "event"}
    groups: dict[str, tuple[Wait, ...]] = {}
    if watched:
        for wait in waits:
            if wait.position in watched:
                groups[wait.position] = (*groups.get(wait.position, ()), wait)
    return groups


def fire(box: Box, position: str, option: int) -> Box:
    """A timer, or the end of a run, wins a position that nothing has won yet."""
    won = box.won.copy()
    won[position] = (option, None)
    return replace(box, won=won)


def close(box: Box, positions: Collection[str], read: Collection[str]) -> Box:
    """Positions are done with, and these events are read. What had won there without being read waits on if it was sent
    to this run; if not, it goes back to where it came from."""
    events = tuple(
        replace(event, position=None) if event.position in positions else event
        for event in box.events
        if event.id not in read and not (event.shared and event.position in positions)
    )
    # A method of dicts: dict(…) takes ten times as long for one that something was taken from, and hundreds of
    # children may have ended when their parent hears of the first.
    waits, won = box.waits.copy(), box.won.copy()
    for position in positions:
        waits.pop(position, None)
        won.pop(position, None)
    return Box(waits=waits, events=events, won=won) if waits or events or won else EMPTY


def learn(box: Box, waits: Iterable[Wait], events: Iterable[Event]) -> tuple[Box, list[tuple[Wait, Event | None]]]:
    """Take over what has won in other engines' transactions, according to what is stored; the winners.

    A position that something else has won here meanwhile, or that is done with, stays as it is: what lost is freed when
    the store forgets the position.
    """
    winners: list[tuple[Wait, Event | None]] = []
    given = {event.position: event for event in events if event.position is not None}
    for wait in waits:
        event = given.get(wait.position)
        if event is not None:
            if event.option == wait.option and is_open(box, wait.position):
                box = give(box, event)
                winners.append((wait, event))
        elif wait.target is not None and wait.due_at == 0 and wait.position not in box.won:
            # All options of a position that an end has won are marked. Whoever asks after one that has not ended finds
            # that out, and waits again.
            box = fire(box, wait.position, wait.option)
            winners.append((wait, None))
    return box, winners


def hop(box: Box, read: Collection[str]) -> Box:
    """Nothing is waited for any more; what was sent to the run waits on."""
    return close(box, box.waits.keys() | box.won.keys(), read)


def pending(box: Box, name: str, now: int) -> int:
    """How many events of this name wait to be read and have not expired."""
    return sum(event.name == name and event.position is None and event.expires_at > now for event in box.events)


def without_expired(box: Box, now: int) -> Box:
    """Forget events that nobody can be given any more; the store forgets them in its own time."""
    if all(event.position is not None or event.expires_at > now for event in box.events):
        return box
    kept = tuple(event for event in box.events if event.position is not None or event.expires_at > now)
    return replace(box, events=kept)
