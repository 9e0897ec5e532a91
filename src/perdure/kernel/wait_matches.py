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
from perdure.kernel import open_waits
from perdure.kernel.event_queue import Placed, Unread
from perdure.kernel.events import Event
from perdure.kernel.open_waits import Group, OpenWaits
from perdure.kernel.persistent_maps import Pages
from perdure.kernel.rows import Wait

FEW: Final = 16  # A mailbox with at most so many positions is searched one by one, and has no index.

_NOTHING: Final[Any] = Pages()  # can be shared, because Pages are never changed in place


class Mailbox(Struct, frozen=True, kw_only=True, gc=False):
    """A run's waits for events, and the events that were sent to it.

    `waits` has the waits that have an event among their options, by position. `given` has the events that have won a
    position, by position. `unread` has all other events, by name. Each event has its place in the order of sending.
    `won` has the winner of each position: the option, and the event's id. The id is None for a timer or the end of a
    run.

    A position without an event among its options is not in `waits`, because no event could win it. For example, a
    parent may wait for a thousand children. Once one of these children has ended, the position is in `won`.

    A run with few waits has them in the order of waiting. For a run with more, `index` has that order, and the
    positions that nothing has won yet.

    No change of a mailbox goes over all its events or all its waits. A run may have fifty thousand unread events, and
    ten thousand tasks that each wait for one event.
    """

    waits: Pages[str, Group] = _NOTHING
    index: OpenWaits | None = None
    given: Pages[str, Placed] = _NOTHING
    unread: Pages[str, Unread] = _NOTHING
    won: Pages[str, tuple[int, str | None]] = _NOTHING
    sent: int = 0  # how many events have come so far: the place of the next one

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
        return [*self.waits] if self.index is None else sorted(self.waits, key=self.index.orders.__getitem__)


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


def _first_open(mailbox: Mailbox, event: Event) -> tuple[str, int] | None:
    """Return the position that an event wins, and the option."""
    if mailbox.index is not None:
        return open_waits.first(mailbox.index, event)
    for position, group in mailbox.waits.items():
        if position not in mailbox.won:
            for wait in group:
                if accepts(wait, event):
                    return position, wait.option
    return None


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
        mailbox,
        index=_shut(mailbox, (position,)),
        given=mailbox.given.changed({position: placed}),
        won=mailbox.won.changed({position: (event.option, event.id)}),
        sent=mailbox.sent + 1,
    )


def add_waits(mailbox: Mailbox, waits: Collection[Wait]) -> Mailbox:
    """Open the positions of these waits. A position that is opened again counts as not won."""
    if not waits:
        return mailbox
    groups = _watched(waits)
    won = mailbox.won
    if won:
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
    if not mailbox.unread or not mailbox.waits or (anew == () and not freed):
        return mailbox, []
    index = mailbox.index
    if anew is None or index is None:
        return _settled(mailbox, mailbox.in_order(), now)
    positions = [*dict.fromkeys(wait.position for wait in anew if wait.position in mailbox.waits)]
    new = min((index.orders[position] for position in positions), default=index.begun)
    if freed and new < index.begun - len(positions):  # One of the positions is not new: it was opened again.
        return _settled(mailbox, mailbox.in_order(), now)
    winners: list[Event] = []
    for place, event in sorted(freed, key=lambda one: one[0]):
        if mailbox.index is not None and event.expires_at > now:
            found = open_waits.first(mailbox.index, event, new)
            if found is not None:
                mailbox, winner = _won_by(mailbox, place, event, *found)
                winners.append(winner)
    winners.sort(key=lambda event: index.orders[event.position or ""])
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
        mailbox,
        index=_shut(mailbox, (position,)),
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
    waits = mailbox.waits.changed(groups)
    index = mailbox.index
    if index is not None:
        known = [position for position in groups if position in mailbox.waits]
        index = open_waits.added(open_waits.shut(index, _open_options(mailbox, known)), groups, mailbox.won)
    elif len(waits) > FEW:
        every = {**dict(mailbox.waits), **groups}  # in the order of waiting
        index = open_waits.added(open_waits.EMPTY, every, mailbox.won)
    return replace(mailbox, waits=waits, index=index)


def _shut(mailbox: Mailbox, positions: Iterable[str]) -> OpenWaits | None:
    """Return the mailbox's index without these positions."""
    index = mailbox.index
    return None if index is None else open_waits.shut(index, _open_options(mailbox, positions))


def _open_options(mailbox: Mailbox, positions: Iterable[str]) -> Iterator[tuple[str, Wait]]:
    for position in positions:
        if position not in mailbox.won:
            for wait in mailbox.waits.get(position, ()):
                if wait.kind == "event":
                    yield position, wait


def fire(mailbox: Mailbox, position: str, option: int) -> Mailbox:
    """Let a timer, or the end of a run, win a position that nothing has won yet."""
    won = mailbox.won.changed({position: (option, None)})
    return replace(mailbox, index=_shut(mailbox, (position,)), won=won)


def close(mailbox: Mailbox, positions: Collection[str], read: Collection[str]) -> Mailbox:
    """Do the same as `closed`, but return only the mailbox."""
    return closed(mailbox, positions, read)[0]


def closed(
    mailbox: Mailbox, positions: Collection[str], read: Collection[str], anew: Collection[Wait] = ()
) -> tuple[Mailbox, list[Placed]]:
    """Close positions, and remove the events that were read. This includes events at positions that are opened again.

    An event that had won a closed position without being read is freed. If it was sent to this run, it is unread again,
    and is returned. If it was shared, it leaves the mailbox: the transaction decides where it goes
    (rules/broadcasts.py)."""
    if _ends_with(mailbox, positions, read):
        return EMPTY, []
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
    index = _shut(mailbox, positions) if waits else None
    if index is not None:
        index = open_waits.without(index, positions)
    return replace(mailbox, waits=waits, index=index, given=given, unread=unread, won=won), freed


def _ends_with(mailbox: Mailbox, positions: Collection[str], read: Collection[str]) -> bool:
    """Return whether nothing is left once these positions are closed and these events are read. Returns False for any
    mailbox with unread events or many positions, without looking further: most mailboxes have neither."""
    waits, won, given = mailbox.waits, mailbox.won, mailbox.given
    if mailbox.unread or not len(waits) <= len(positions) <= FEW or len(won) > FEW or len(given) > len(read):
        return False
    for position in waits:
        if position not in positions:
            return False
    for position in won:
        if position not in positions:
            return False
    return all(placed[1].id in read for placed in given.values())


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
    """Remove expired events. The store removes them later."""
    if not mailbox.unread or all(unread.expires_at > now for unread in mailbox.unread.values()):
        return mailbox
    left = {name: queue.without_expired(unread, now) for name, unread in mailbox.unread.items()}
    return replace(mailbox, unread=Pages({name: unread for name, unread in left.items() if unread is not None}))
