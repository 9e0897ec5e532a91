"""What a run waits for and what has been sent to it: which of the two meet. Pure.

Only events sent to the run itself are matched here. Broadcasts are everybody's, so they are matched inside the
transaction (matching.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.errors import InvariantViolated
from perdure.kernel import unread as queue
from perdure.kernel.records import Event, Wait
from perdure.kernel.unread import Placed, Unread


class Mailbox(Struct, frozen=True, kw_only=True, gc=False):
    """A run's waits with an event among their options, by position, in the order of waiting; the events that have won
    one, by position, and those that have not, by name, each with its place in the order of sending; and what has won at
    which position: the option, and the event's id (None: a timer, or the end of a run).

    A position that has no event among its options is not in `waits`, since nothing here could win it: a parent may wait
    for a thousand children. It is in `won` once one of them has ended.

    Nothing that is done to a mailbox looks at all of its events: a run may have fifty thousand to read.
    """

    waits: dict[str, tuple[Wait, ...]] = field(default_factory=dict)
    given: dict[str, Placed] = field(default_factory=dict)
    unread: dict[str, Unread] = field(default_factory=dict)
    won: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    sent: int = 0  # how many events there have been: the place of the next

    @property
    def is_empty(self) -> bool:
        return not (self.waits or self.unread or self.won)  # What was given has won.

    @property
    def events(self) -> tuple[Event, ...]:
        """All of them, in the order of sending."""
        placed = [*self.given.values(), *(one for unread in self.unread.values() for one in unread)]
        return tuple(event for _, event in sorted(placed, key=lambda one: one[0]))


EMPTY = Mailbox()


def is_open(mailbox: Mailbox, position: str) -> bool:
    """Whether the run waits there and nothing has won yet."""
    return position in mailbox.waits and position not in mailbox.won


def accepts(wait: Wait, event: Event) -> bool:
    return (
        wait.kind == "event"
        and wait.name == event.name
        and (not wait.where or all(event.fields.get(name) == value for name, value in wait.where))
    )


def opened(waits: Collection[Wait], events: Collection[Event]) -> Mailbox:
    """A run's mailbox as it is stored."""
    if not events and all(wait.kind == "timer" for wait in waits):
        return EMPTY  # As of most runs that sleep.
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
    return Mailbox(waits=groups, given=given, unread=unread, won=won, sent=len(ordered))


def put(mailbox: Mailbox, event: Event, only_at: str | None = None) -> tuple[Mailbox, Event]:
    """Add an event: to the position that it wins, the one that was opened first, or to those that wait. `only_at` is
    the one position that can accept it, if that is known: a run may have opened ten thousand tasks."""
    for position in mailbox.waits if only_at is None else (only_at,):
        if position not in mailbox.won:
            for wait in mailbox.waits.get(position, ()):
                if accepts(wait, event):
                    given = replace(event, position=position, option=wait.option)
                    return _given(mailbox, position, given), given
    unread = mailbox.unread.copy()
    unread[event.name] = queue.added(unread.get(event.name), mailbox.sent, event)
    return replace(mailbox, unread=unread, sent=mailbox.sent + 1), event


def give(mailbox: Mailbox, event: Event) -> Mailbox:
    """Add an event that has won elsewhere, in the transaction."""
    if event.position is None or any(known.id == event.id for _, known in mailbox.given.values()):
        return mailbox
    if not event.shared and any(known.id == event.id for _, known in mailbox.unread.get(event.name, ())):
        return mailbox  # What is shared was never sent to this run alone.
    return _given(mailbox, event.position, event)


def _given(mailbox: Mailbox, position: str, event: Event) -> Mailbox:
    given, won = mailbox.given.copy(), mailbox.won.copy()
    given[position] = mailbox.sent, event
    won[position] = event.option, event.id
    return Mailbox(waits=mailbox.waits, given=given, unread=mailbox.unread, won=won, sent=mailbox.sent + 1)


def add_waits(mailbox: Mailbox, waits: Collection[Wait]) -> Mailbox:
    """Open positions."""
    groups = _watched(waits)
    won = mailbox.won
    if won and waits:  # A position that is opened anew has not been won.
        anew = {wait.position for wait in waits}
        if not anew.isdisjoint(won):
            won = {position: by for position, by in won.items() if position not in anew}
    if not groups and won is mailbox.won:
        return mailbox
    return replace(mailbox, waits={**mailbox.waits, **groups}, won=won)


def settle(mailbox: Mailbox, now: int, anew: Collection[Wait] | None = None) -> tuple[Mailbox, list[Event]]:
    """Let open positions, in the order of opening, be won by the earliest sent of the events that wait; the winners.

    `anew` are the waits that were just added, if nothing else has changed: then only their positions can be won.
    """
    if not mailbox.unread or anew == () or mailbox.waits.keys() <= mailbox.won.keys():
        return mailbox, []
    won, given, left = mailbox.won.copy(), mailbox.given.copy(), mailbox.unread.copy()
    winners: list[Event] = []
    for position in mailbox.waits if anew is None else dict.fromkeys(wait.position for wait in anew):
        group = mailbox.waits.get(position, ())
        if position in won or (earliest := _earliest(group, left, now)) is None:
            continue
        place, event = earliest
        option = next(wait.option for wait in group if accepts(wait, event))
        won[position] = option, event.id
        winners.append(replace(event, position=position, option=option))
        given[position] = place, winners[-1]
        _take_out(left, place, event.name)
    return (replace(mailbox, given=given, unread=left, won=won), winners) if winners else (mailbox, winners)


def _earliest(group: Collection[Wait], left: dict[str, Unread], now: int) -> Placed | None:
    """Of the events that a position can have, the one that was sent first."""
    earliest: Placed | None = None
    for wait in group:
        if wait.kind != "event" or wait.name not in left:
            continue
        found = queue.first(left[wait.name], partial(accepts, wait), now)
        if found is not None and (earliest is None or found[0] < earliest[0]):
            earliest = found
    return earliest


def _take_out(left: dict[str, Unread], place: int, name: str) -> None:
    remaining = queue.without(left[name], place)
    if remaining is None:
        del left[name]
    else:
        left[name] = remaining


def _watched(waits: Collection[Wait]) -> dict[str, tuple[Wait, ...]]:
    watched = {wait.position for wait in waits if wait.kind == "event"}
    groups: dict[str, tuple[Wait, ...]] = {}
    if watched:
        for wait in waits:
            if wait.position in watched:
                groups[wait.position] = (*groups.get(wait.position, ()), wait)
    return groups


def fire(mailbox: Mailbox, position: str, option: int) -> Mailbox:
    """A timer, or the end of a run, wins a position that nothing has won yet."""
    won = mailbox.won.copy()
    won[position] = (option, None)
    return replace(mailbox, won=won)


def close(mailbox: Mailbox, positions: Collection[str], read: Collection[str]) -> Mailbox:
    """Positions are done with, and these events are read. What had won there without being read waits on if it was sent
    to this run; if not, it goes back to where it came from."""
    # A method of dicts: dict(…) takes ten times as long for one that something was taken from, and hundreds of
    # children may have ended when their parent hears of the first.
    waits, won, given = mailbox.waits.copy(), mailbox.won.copy(), mailbox.given.copy()
    unread = mailbox.unread
    unseen = set(read)
    freed: list[Placed] = []
    for position in positions:
        waits.pop(position, None)
        won.pop(position, None)
        if (placed := given.pop(position, None)) is not None:
            if placed[1].id in unseen:
                unseen.discard(placed[1].id)
            elif not placed[1].shared:
                freed.append(placed)
    if unseen:  # They were given elsewhere, or to positions that are not done with.
        given = {position: placed for position, placed in given.items() if placed[1].id not in unseen}
        unread = _without(unread, unseen)
    if freed:
        unread = unread.copy()
        for place, event in freed:
            unread[event.name] = queue.restored(unread.get(event.name), place, replace(event, position=None))
    return (
        Mailbox(waits=waits, given=given, unread=unread, won=won, sent=mailbox.sent)
        if waits or unread or won
        else EMPTY
    )


def first_of(mailbox: Mailbox, waits: Collection[Wait], now: int) -> tuple[Mailbox, Event, int] | None:
    """What a position with these options would be given if it were opened now: the mailbox without that event, the
    event,
    and the option that it wins. None if nothing that was sent to the run fits."""
    if not mailbox.unread or (earliest := _earliest(waits, mailbox.unread, now)) is None:
        return None
    place, event = earliest
    option = next(wait.option for wait in waits if accepts(wait, event))
    left = mailbox.unread.copy()
    _take_out(left, place, event.name)
    return replace(mailbox, unread=left), event, option


def read_ahead(mailbox: Mailbox, event_ids: Collection[str]) -> Mailbox:
    """The run has read events that it did not wait for, since they were there. One that is not there any more has
    expired meanwhile: it was read in time. Raises InvariantViolated if one of them has won a wait."""
    ids = set(event_ids)
    if any(event.id in ids for _, event in mailbox.given.values()):
        raise InvariantViolated(f"events that were read ahead have won a wait: {sorted(ids)[:5]}")
    left = replace(mailbox, unread=_without(mailbox.unread, ids))
    return EMPTY if left.is_empty else left


def _without(unread: dict[str, Unread], ids: set[str]) -> dict[str, Unread]:
    found = {name: queue.without_ids(some, ids) for name, some in unread.items()}
    return {name: some for name, some in found.items() if some is not None}


def learn(
    mailbox: Mailbox, waits: Iterable[Wait], events: Iterable[Event]
) -> tuple[Mailbox, list[tuple[Wait, Event | None]]]:
    """Take over what has won in other engines' transactions, according to what is stored; the winners.

    A position that something else has won here meanwhile, or that is done with, stays as it is: what lost is freed when
    the store forgets the position.
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
            # All options of a position that an end has won are marked. Whoever asks after one that has not ended finds
            # that out, and waits again.
            mailbox = fire(mailbox, wait.position, wait.option)
            winners.append((wait, None))
    return mailbox, winners


def continue_anew(mailbox: Mailbox, read: Collection[str]) -> Mailbox:
    """Nothing is waited for any more; what was sent to the run waits on."""
    return close(mailbox, mailbox.waits.keys() | mailbox.won.keys(), read)


def pending(mailbox: Mailbox, name: str, now: int) -> int:
    """How many events of this name wait to be read and have not expired."""
    unread = mailbox.unread.get(name)
    left = None if unread is None else queue.without_expired(unread, now)
    return 0 if left is None else left.count


def without_expired(mailbox: Mailbox, now: int) -> Mailbox:
    """Forget events that nobody can be given any more; the store forgets them in its own time."""
    if all(unread.expires_at > now for unread in mailbox.unread.values()):
        return mailbox
    left = {name: queue.without_expired(unread, now) for name, unread in mailbox.unread.items()}
    return replace(mailbox, unread={name: unread for name, unread in left.items() if unread is not None})
