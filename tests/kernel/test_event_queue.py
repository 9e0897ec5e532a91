"""Events that a run has yet to read: in order, whichever are taken out, put back or expire, and however many."""

from __future__ import annotations

from random import Random

import pytest

from perdure.kernel import event_queue, wait_matches
from perdure.kernel.event_queue import BLOCK_MAX, Placed, Unread
from perdure.kernel.events import Event
from perdure.kernel.rows import Wait
from tests.kernel.examples import NOW


def an_event(place: int, expires_at: int = NOW + 1_000) -> Event:
    fields = {"number": str(place), "colour": str(place % 3)}
    return Event(id=f"e-{place}", name="a", run_id="r-1", at=NOW, expires_at=expires_at, fields=fields)


def listed(some: Unread | None) -> list[Placed]:
    return [] if some is None else list(some)


@pytest.mark.parametrize("seed", range(20))
def test_they_are_what_a_plain_list_would_be(seed: int) -> None:
    random = Random(seed)
    some: Unread | None = None
    expected: list[Placed] = []
    taken: list[Placed] = []
    place, now = 0, NOW
    for _ in range(1_500):
        before, kept = some, listed(some) if random.random() < 0.02 else None
        what = random.choices(["add", "take", "read", "put back", "expire"], [9, 4, 0.5, 2, 0.2])[0]
        if what == "add":
            event = an_event(place, now + random.randrange(1, 900))
            some = event_queue.added(some, place, event)
            expected.append((place, event))
            place += 1
        elif what == "take" and some is not None:
            one = random.choice(expected[:3] + expected[-3:])
            some = event_queue.without(some, one[0])
            expected.remove(one)
            taken.append(one)
        elif what == "read" and some is not None:
            read = random.sample(expected[:20] + expected[-3:], min(5, len(expected)))
            ids = {event.id for _, event in read}
            some = event_queue.without_ids(some, ids)
            assert not ids
            expected = [placed for placed in expected if placed not in read]
        elif what == "put back" and taken:
            one = taken.pop(random.randrange(len(taken)))
            some = event_queue.restored(some, *one)
            expected = sorted([*expected, one], key=lambda placed: placed[0])
        elif what == "expire" and some is not None:
            now += 20
            some = event_queue.without_expired(some, now)
            expected = [placed for placed in expected if placed[1].expires_at > now]
        assert (0 if some is None else some.count) == len(expected)
        if some is not None and random.random() < 0.1:
            colour = str(random.randrange(4))
            fitting = [placed for placed in expected if placed[1].fields["colour"] == colour]
            fresh = next((placed for placed in fitting if placed[1].expires_at > now), None)
            assert event_queue.first(some, (("colour", colour),), now) == fresh
        if kept is not None:
            assert listed(before) == kept  # What was there before is as it was.
            assert listed(some) == expected
    assert listed(some) == expected
    assert place > 2 * BLOCK_MAX


def test_the_first_that_fits_is_found_behind_others_and_behind_what_has_expired() -> None:
    some = event_queue.of([(place, an_event(place, NOW + place)) for place in range(600)])
    assert some is not None
    assert event_queue.first(some, (), NOW + 300) == (301, an_event(301, NOW + 301))
    assert event_queue.first(some, (("number", "599"),), NOW) == (599, an_event(599, NOW + 599))
    assert event_queue.first(some, (("colour", "2"), ("number", "599")), NOW) == (599, an_event(599, NOW + 599))
    assert event_queue.first(some, (("colour", "1"), ("number", "599")), NOW) is None
    assert event_queue.first(some, (("size", "1"),), NOW) is None
    assert event_queue.first(some, (("number", "5"),), NOW + 5) is None


def test_what_had_won_without_being_read_is_before_what_was_sent_after_it() -> None:
    mailbox = wait_matches.opened([], [an_event(place) for place in range(600)])
    for position in ("1", "2"):
        mailbox, given = wait_matches.settle(wait_matches.add_waits(mailbox, [_wait(position)]), NOW)
        assert [event.position for event in given] == [position]
    mailbox = wait_matches.close(mailbox, ["1", "2"], ["e-1"])
    assert [event.id for event in mailbox.events][:2] == ["e-0", "e-2"]
    assert wait_matches.pending(mailbox, "a", NOW) == 599


def test_events_that_are_read_are_found_without_looking_at_those_sent_after_them() -> None:
    some = event_queue.of([(place, an_event(place)) for place in range(3 * BLOCK_MAX)])
    assert some is not None
    left = event_queue.without_ids(some, {"e-0", "e-1"})
    assert left is not None
    assert left.count == some.count - 2
    assert all(after is before for after, before in zip(left.blocks[1:], some.blocks[1:], strict=True))


def _wait(position: str) -> Wait:
    return Wait(run_id="r-1", position=position, kind="event", name="a")
