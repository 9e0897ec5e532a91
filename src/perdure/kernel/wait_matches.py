"""Matches a run's waits with the events that were sent to the run, in the run's mailbox. This module is pure.

If several events match one wait, the event that was sent first wins. If one wait has several options, the first event
or timer wins. rules/delivery.py decides when to match.

Only events that were sent to the run itself are matched here. Broadcasts are for all runs, so they are matched inside
the transaction (rules/broadcasts.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import InvariantViolated
from perdure.kernel import event_queue as queue
from perdure.kernel.event_queue import Placed, Shape, Unread
from perdure.kernel.events import Event
from perdure.kernel.persistent_maps import Line, Pages
from perdure.kernel.rows import Wait

Where = tuple[tuple[str, str], ...]
Group = tuple[Wait, ...]  # the options of a position
# identifies an option: the number of its position in the order of waiting, and the option's index
Opened = tuple[int, int]

_NOTHING: Final[Any] = Pages()  # can be shared, because Pages are never changed in place


class Mailbox(Struct, frozen=True, kw_only=True, gc=False):
    """A run's waits for events, and the events that were sent to it.

    `waits` has the waits that have an event among their options, by position. `given` has the events that have won a
    position, by position. `unread` has all other events, by name. Each event has its place in the order of sending.
    `won` has the winner of each position: the option, and the event's id. The id is None for a timer or the end of a
    run.

    A position without an event among its options is not in `waits`, because no event could win it. For example, a
    parent may wait for a thousand children. Once one of these children has ended, the position is in `won`.

    `orders` has the numbers of the positions in the order of waiting. `open` has the positions that are not won yet.
    They are grouped by the event name and the filter of their options, in the order of waiting. `shapes` has, for each
    name, the sets of fields by which options filter. Each set has the number of its different filters.

    No change of a mailbox goes over all its events or all its waits. A run may have fifty thousand unread events, and
    ten thousand tasks that each wait for one event.
    """

    waits: Pages[str, Group] = _NOTHING
    orders: Pages[str, int] = _NOTHING
    open: Pages[tuple[str, Where], Line[Opened, str]] = _NOTHING
    shapes: Pages[str, dict[Shape, int]] = _NOTHING
    given: Pages[str, Placed] = _NOTHING
    unread: Pages[str, Unread] = _NOTHING
    won: Pages[str, tuple[int, str | None]] = _NOTHING
    sent: int = 0  # how many events have arrived so far; the number of the next event
    begun: int = 0  # how many positions were opened so far; the number of the next position

    @property
    def is_empty(self) -> bool:
        return not (self.waits or self.unread or self.won)  # Every event in `given` has its position in `won`.

    @property
    def events(self) -> tuple[Event, ...]:
        """Return all events, in the order of sending."""
        placed = [*self.given.values(), *(one for unread in self.unread.values() for one in unread)]
        return tuple(event for _, event in sorted(placed, key=lambda one: one[0]))

    def in_order(self) -> list[str]:
        """Return the positions with waits, in the order of waiting."""
        return sorted(self.waits, key=self.orders.__getitem__)


EMPTY = Mailbox()


def is_open(mailbox: Mailbox, position: str) -> bool:
    """Return whether the run waits at this position and the position is not won yet."""
    return position in mailbox.waits and position not in mailbox.won


def accepts(wait: Wait, event: Event) -> bool:
    return (
        wait.kind == "event"
        and wait.name == event.name
        and (not wait.where or all(event.fields.get(name) == value for name, value in wait.where))
    )


def opened(waits: Collection[Wait], events: Collection[Event]) -> Mailbox:
    """Return a run's mailbox from its stored waits and events."""
    if not events and all(wait.kind == "timer" for wait in waits):
        return EMPTY  # Most sleeping runs have neither waits for events nor events.
    ordered = sorted(events, key=lambda event: event.number)
    groups = _watched(sorted(waits, key=lambda wait: (wait.number, wait.position, wait.option)))
    won: dict[str, tuple[int, str | None]] = {
        wait.position: (wait.option, None) for wait in waits if wait.target is not None and wait.due_at == 0
    }
    given: dict[str, Placed] = {}
    by_name: dict[str, list[Placed]] = {}
    for place, event in enumerate(ordered):
        if event.position is None:
            by_name.setdefault(event.name, []).append((place, event))
        else:
            given[event.position] = place, event
            won[event.position] = event.option, event.id
    unread = {name: found for name, placed in by_name.items() if (found := queue.of(placed)) is not None}
    mailbox = Mailbox(given=Pages(given), unread=Pages(unread), won=Pages(won), sent=len(ordered))
    return _waiting_at(mailbox, groups)


def put(mailbox: Mailbox, event: Event, only_at: str | None = None) -> tuple[Mailbox, Event]:
    """Add an event. The event wins the position that was opened first, among the positions that accept it. If no
    position accepts the event, it stays unread. `only_at` is the only position that can accept the event, if this is
    known.
    """
    found = _first_open(mailbox, event) if only_at is None else _open_at(mailbox, event, only_at)
    if found is not None:
        position, option = found
        given = replace(event, position=position, option=option)
        return _given(mailbox, position, given), given
    unread = mailbox.unread
    unread = unread.changed({event.name: queue.added(unread.get(event.name), mailbox.sent, event)})
    return replace(mailbox, unread=unread, sent=mailbox.sent + 1), event


def _first_open(mailbox: Mailbox, event: Event, before: int | None = None) -> tuple[str, int] | None:
    """Return the position that an event wins, and the winning option. With `before`, only positions with a lower number
    count.
    """
    shapes: Iterable[Shape] = mailbox.shapes.get(event.name, ())
    best: tuple[Opened, str] | None = None
    for shape in shapes:
        if all(name in event.fields for name in shape):
            line = mailbox.open.get((event.name, tuple([(name, event.fields[name]) for name in shape])))
            if line is not None and (best is None or line.first < best):
                best = line.first
    if best is None or (before is not None and best[0][0] >= before):
        return None
    (_, option), position = best
    return position, option


def _open_at(mailbox: Mailbox, event: Event, position: str) -> tuple[str, int] | None:
    if position not in mailbox.won:
        for wait in mailbox.waits.get(position, ()):
            if accepts(wait, event):
                return position, wait.option
    return None


def give(mailbox: Mailbox, event: Event) -> Mailbox:
    """Add an event that has won a position inside a transaction."""
    if event.position is None or _is_given(mailbox, event):
        return mailbox
    if not event.shared and any(known.id == event.id for _, known in mailbox.unread.get(event.name, ())):
        return mailbox  # The event was sent only to this run, and is unread.
    return _given(mailbox, event.position, event)


def _is_given(mailbox: Mailbox, event: Event) -> bool:
    """Return whether the mailbox has the event at its position. An event gets another position only after its first
    position is closed.
    """
    known: Placed | None = mailbox.given.get(event.position or "")
    return known is not None and known[1].id == event.id


def _given(mailbox: Mailbox, position: str, event: Event) -> Mailbox:
    placed = mailbox.sent, event
    return replace(
        _shut(mailbox, (position,)),
        given=mailbox.given.changed({position: placed}),
        won=mailbox.won.changed({position: (event.option, event.id)}),
        sent=mailbox.sent + 1,
    )


def add_waits(mailbox: Mailbox, waits: Collection[Wait]) -> Mailbox:
    """Open the positions of these waits. A position that is opened again counts as open."""
    groups = _watched(waits)
    won = mailbox.won
    if won and waits:
        anew = {wait.position for wait in waits if wait.position in won}
        if anew:
            won = won.changed({}, anew)
    if not groups and won is mailbox.won:
        return mailbox
    return _waiting_at(replace(mailbox, won=won), groups)


def settle(
    mailbox: Mailbox, now: int, anew: Collection[Wait] | None = None, freed: Collection[Placed] = ()
) -> tuple[Mailbox, list[Event]]:
    """Give unread events to open positions, and return the events that have won. Positions get events in the order in
    which they were opened. Each gets the event that was sent first, among those that it accepts.

    `anew` are the waits that were just added. Pass them only if nothing else has changed, except that the `freed`
    events are unread again. In that case, every unread event can win a position of `anew`, but only a freed event can
    win another position.
    """
    if not mailbox.unread or not mailbox.open or (anew == () and not freed):
        return mailbox, []
    if anew is None:
        return _settled(mailbox, mailbox.in_order(), now)
    positions = [*dict.fromkeys(wait.position for wait in anew if wait.position in mailbox.waits)]
    new = min((mailbox.orders[position] for position in positions), default=mailbox.begun)
    if freed and new < mailbox.begun - len(positions):  # One of the positions is not new, but was opened again.
        return _settled(mailbox, mailbox.in_order(), now)
    winners: list[Event] = []
    for place, event in sorted(freed, key=lambda one: one[0]):
        found = None if event.expires_at <= now else _first_open(mailbox, event, new)
        if found is not None:
            mailbox, winner = _won_by(mailbox, place, event, *found)
            winners.append(winner)
    winners.sort(key=lambda event: mailbox.orders[event.position or ""])
    mailbox, more = _settled(mailbox, positions, now)
    return mailbox, winners + more


def _settled(mailbox: Mailbox, positions: Iterable[str], now: int) -> tuple[Mailbox, list[Event]]:
    winners: list[Event] = []
    for position in positions:
        if position in mailbox.won:
            continue
        group: Group = mailbox.waits[position]
        if (earliest := _earliest(group, mailbox.unread, now)) is not None:
            place, event = earliest
            option = next(wait.option for wait in group if accepts(wait, event))
            mailbox, winner = _won_by(mailbox, place, event, position, option)
            winners.append(winner)
    return mailbox, winners


def _won_by(mailbox: Mailbox, place: int, event: Event, position: str, option: int) -> tuple[Mailbox, Event]:
    """Let an unread event win an open position."""
    winner = replace(event, position=position, option=option)
    mailbox = replace(
        _shut(mailbox, (position,)),
        given=mailbox.given.changed({position: (place, winner)}),
        unread=_taken_out(mailbox.unread, place, event.name),
        won=mailbox.won.changed({position: (option, event.id)}),
    )
    return mailbox, winner


def _earliest(group: Collection[Wait], left: Mapping[str, Unread], now: int) -> Placed | None:
    """Return the event that was sent first, among the events that a position accepts."""
    earliest: Placed | None = None
    for wait in group:
        if wait.kind != "event" or (some := left.get(wait.name)) is None:
            continue
        found = queue.first(some, wait.where, now)
        if found is not None and (earliest is None or found[0] < earliest[0]):
            earliest = found
    return earliest


def _taken_out(unread: Pages[str, Unread], place: int, name: str) -> Pages[str, Unread]:
    remaining = queue.without(unread[name], place)
    return unread.changed({}, (name,)) if remaining is None else unread.changed({name: remaining})


def _watched(waits: Collection[Wait]) -> dict[str, Group]:
    watched = {wait.position for wait in waits if wait.kind == "event"}
    groups: dict[str, list[Wait]] = {}
    if watched:
        for wait in waits:
            if wait.position in watched:
                groups.setdefault(wait.position, []).append(wait)
    return {position: tuple(group) for position, group in groups.items()}


def _waiting_at(mailbox: Mailbox, groups: Mapping[str, Group]) -> Mailbox:
    """Add these positions. They are open unless they are already won. A position that is already known keeps its
    number.
    """
    if not groups:
        return mailbox
    known = [position for position in groups if position in mailbox.waits]
    if known:
        mailbox = _shut(mailbox, known)
    orders = {position: mailbox.orders[position] for position in known}
    begun = mailbox.begun
    for position in groups:
        if position not in orders:
            orders[position] = begun
            begun += 1
    lines: dict[tuple[str, Where], Line[Opened, str]] = {}
    shapes: dict[str, dict[Shape, int]] = {}
    for position, group in groups.items():
        if position in mailbox.won:
            continue
        for wait in group:
            if wait.kind == "event":
                key = wait.name, wait.where
                line: Line[Opened, str] | None = lines.get(key) or mailbox.open.get(key)
                if line is None:
                    _count_shape(mailbox, shapes, key, 1)
                lines[key] = (line or Line()).added((orders[position], wait.option), position)
    return replace(
        mailbox,
        waits=mailbox.waits.changed(groups),
        orders=mailbox.orders.changed(orders),
        open=mailbox.open.changed(lines),
        shapes=_with_shapes(mailbox, shapes),
        begun=begun,
    )


def _shut(mailbox: Mailbox, positions: Iterable[str]) -> Mailbox:
    """Remove these positions from the open positions."""
    lines: dict[tuple[str, Where], Line[Opened, str]] = {}
    for position, wait in _open_options(mailbox, positions):
        key = wait.name, wait.where
        line: Line[Opened, str] | None = lines[key] if key in lines else mailbox.open.get(key)
        if line is not None:
            lines[key] = line.without((mailbox.orders[position], wait.option))
    if not lines:
        return mailbox
    gone = [key for key, line in lines.items() if not line]
    shapes: dict[str, dict[Shape, int]] = {}
    for key in gone:
        _count_shape(mailbox, shapes, key, -1)
    left = mailbox.open.changed({key: line for key, line in lines.items() if line}, gone)
    return replace(mailbox, open=left, shapes=_with_shapes(mailbox, shapes))


def _open_options(mailbox: Mailbox, positions: Iterable[str]) -> Iterator[tuple[str, Wait]]:
    for position in positions:
        if position not in mailbox.won:
            for wait in mailbox.waits.get(position, ()):
                if wait.kind == "event":
                    yield position, wait


def _count_shape(mailbox: Mailbox, shapes: dict[str, dict[Shape, int]], key: tuple[str, Where], change: int) -> None:
    """Count one filter more, or one filter less, for a set of fields. `shapes` has only those names whose counts
    change.
    """
    name, where = key
    if name not in shapes:
        shapes[name] = dict(mailbox.shapes.get(name, {}))
    shape = tuple([field for field, _ in where])
    count = shapes[name].get(shape, 0) + change
    if count:
        shapes[name][shape] = count
    else:
        del shapes[name][shape]


def _with_shapes(mailbox: Mailbox, shapes: dict[str, dict[Shape, int]]) -> Pages[str, dict[Shape, int]]:
    if not shapes:
        return mailbox.shapes
    gone = [name for name, counts in shapes.items() if not counts]
    return mailbox.shapes.changed({name: counts for name, counts in shapes.items() if counts}, gone)


def fire(mailbox: Mailbox, position: str, option: int) -> Mailbox:
    """Let a timer, or the end of a run, win a position that is not won yet."""
    return replace(_shut(mailbox, (position,)), won=mailbox.won.changed({position: (option, None)}))


def close(mailbox: Mailbox, positions: Collection[str], read: Collection[str]) -> Mailbox:
    """Do the same as `closed`, but return only the mailbox."""
    return closed(mailbox, positions, read)[0]


def closed(
    mailbox: Mailbox, positions: Collection[str], read: Collection[str], anew: Collection[Wait] = ()
) -> tuple[Mailbox, list[Placed]]:
    """Close positions, and remove the events that were read. This includes events at positions that are opened again.

    If an event had won a closed position but was not read, it is freed. If it was sent to this run, it is unread again,
    and is returned. If it was shared, it leaves the mailbox. The transaction decides where it goes
    (rules/broadcasts.py).
    """
    mailbox = _shut(mailbox, positions)
    given, unread = mailbox.given, mailbox.unread
    unseen = set(read)
    freed: list[Placed] = []
    gone: list[str] = []
    for position in positions:
        placed: Placed | None = given.get(position)
        if placed is not None:
            gone.append(position)
            if placed[1].id in unseen:
                unseen.discard(placed[1].id)
            elif not placed[1].shared:
                freed.append((placed[0], replace(placed[1], position=None)))
    for wait in anew if unseen else ():
        placed = given.get(wait.position)
        if placed is not None and placed[1].id in unseen:
            gone.append(wait.position)
            unseen.discard(placed[1].id)
    if gone:
        given = given.changed({}, gone)
    if unseen:  # These events are unread, or have won positions that stay open.
        given = given.changed({}, [position for position, placed in given.items() if placed[1].id in unseen])
        unread = _without(unread, unseen)
    for place, event in freed:
        unread = unread.changed({event.name: queue.restored(unread.get(event.name), place, event)})
    waits, won = mailbox.waits.changed({}, positions), mailbox.won.changed({}, positions)
    if not (waits or unread or won):
        return EMPTY, []
    orders = mailbox.orders.changed({}, positions)
    return replace(mailbox, waits=waits, orders=orders, given=given, unread=unread, won=won), freed


def first_of(mailbox: Mailbox, waits: Collection[Wait], now: int) -> tuple[Mailbox, Event, int] | None:
    """Return the event that a position with these options would get if it were opened now. The result has the mailbox
    without the event, the event, and the option that it wins. Return None if no unread event fits.
    """
    if not mailbox.unread or (earliest := _earliest(waits, mailbox.unread, now)) is None:
        return None
    place, event = earliest
    option = next(wait.option for wait in waits if accepts(wait, event))
    return replace(mailbox, unread=_taken_out(mailbox.unread, place, event.name)), event, option


def read_ahead(mailbox: Mailbox, event_ids: Collection[str]) -> Mailbox:
    """Remove events that the run has read without waiting, because they were already in the mailbox. If such an event
    is not in the mailbox, it has expired after the run read it. Raises InvariantViolated if one of these events has won
    a wait.
    """
    ids = set(event_ids)
    left = replace(mailbox, unread=_without(mailbox.unread, ids))
    if ids and any(event.id in ids for _, event in mailbox.given.values()):
        raise InvariantViolated(f"events that were read ahead have won a wait: {sorted(ids)[:5]}")
    return EMPTY if left.is_empty else left


def _without(unread: Pages[str, Unread], ids: set[str]) -> Pages[str, Unread]:
    """Return the unread events without the events with these ids. Each id that is found is removed from `ids`."""
    changed: dict[str, Unread] = {}
    gone: list[str] = []
    for name, some in unread.items():
        if not ids:
            break
        left = queue.without_ids(some, ids)
        if left is None:
            gone.append(name)
        elif left.count < some.count:
            changed[name] = left
    return unread.changed(changed, gone) if changed or gone else unread


def learn(
    mailbox: Mailbox, waits: Iterable[Wait], events: Iterable[Event]
) -> tuple[Mailbox, list[tuple[Wait, Event | None]]]:
    """Add the winners that the transactions of other engines have stored, and return them.

    If a position is closed, or has another winner here, it stays unchanged. The other event is freed when the store
    removes the position.
    """
    winners: list[tuple[Wait, Event | None]] = []
    given = {event.position: event for event in events if event.position is not None}
    for wait in waits:
        event = given.get(wait.position)
        if event is not None:
            if event.option == wait.option and is_open(mailbox, wait.position):
                mailbox = give(mailbox, event)
                winners.append((wait, event))
        elif wait.target is not None and wait.due_at == 0 and wait.position not in mailbox.won:
            # If the end of a run wins a position, all options of the position are marked in the store. So the target of
            # this option may not have ended. The waiting run finds that out when it reads the target. Then it waits
            # again.
            mailbox = fire(mailbox, wait.position, wait.option)
            winners.append((wait, None))
    return mailbox, winners


def continue_anew(mailbox: Mailbox, read: Collection[str]) -> Mailbox:
    """Close all positions. Events that were sent to the run and that it has not read stay unread."""
    return close(mailbox, [*dict.fromkeys((*mailbox.in_order(), *mailbox.won))], read)


def pending(mailbox: Mailbox, name: str, now: int) -> int:
    """Return how many events of this name are unread and have not expired."""
    unread = mailbox.unread.get(name)
    left = None if unread is None else queue.without_expired(unread, now)
    return 0 if left is None else left.count


def without_expired(mailbox: Mailbox, now: int) -> Mailbox:
    """Remove expired events. The store removes these events later."""
    if all(unread.expires_at > now for unread in mailbox.unread.values()):
        return mailbox
    left = {name: queue.without_expired(unread, now) for name, unread in mailbox.unread.items()}
    return replace(mailbox, unread=Pages({name: unread for name, unread in left.items() if unread is not None}))
