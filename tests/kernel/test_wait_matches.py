"""Mailboxes: which of a run's waits and which of its events meet."""

from __future__ import annotations

import random
from typing import Any

import pytest

from perdure.errors import InvariantViolated
from perdure.kernel import wait_matches
from perdure.kernel.events import Event
from perdure.kernel.ops import Advance
from perdure.kernel.rows import Wait
from perdure.kernel.rules.delivery import meet
from perdure.kernel.wait_matches import EMPTY, Mailbox
from tests.kernel.examples import NOW


def an_event(event_id: str = "e", name: str = "a", **fields: Any) -> Event:
    defaults: dict[str, Any] = {"expires_at": NOW + 10}
    return Event(id=event_id, name=name, run_id="r-1", at=NOW, **defaults | fields)


def a_wait(position: str = "1", name: str = "a", **fields: Any) -> Wait:
    defaults: dict[str, Any] = {"kind": "event", "name": name}
    return Wait(run_id="r-1", position=position, **defaults | fields)


def with_waits(*waits: Wait) -> Mailbox:
    return wait_matches.add_waits(EMPTY, waits)


def test_an_event_wins_the_position_that_was_opened_first() -> None:
    mailbox, given = wait_matches.put(with_waits(a_wait("2"), a_wait("1")), an_event())
    assert (given.position, dict(mailbox.won)) == ("2", {"2": (0, "e")})
    mailbox, given = wait_matches.put(mailbox, an_event("e-2"))
    assert given.position == "1"
    mailbox, given = wait_matches.put(mailbox, an_event("e-3"))
    assert given.position is None


def test_a_stored_box_has_the_order_of_waiting_and_of_sending() -> None:
    waits = [a_wait("10", number=5), a_wait("2", number=3), a_wait("3", number=4)]
    events = [an_event("z", number=2), an_event("y", number=1)]
    mailbox = wait_matches.opened(waits, events)
    assert list(mailbox.waits) == ["2", "3", "10"]
    assert [event.id for event in mailbox.events] == ["y", "z"]


def test_positions_without_an_event_among_their_options_are_not_watched() -> None:
    assert with_waits(a_wait(kind="timer", name="timer", due_at=5), a_wait("2", kind="run", target="x")) is EMPTY
    mailbox = with_waits(
        a_wait("1", kind="run", target="x"), a_wait("2", kind="run", target="x"), a_wait("2", option=1)
    )
    assert {position: len(group) for position, group in mailbox.waits.items()} == {"2": 2}


def test_a_stored_position_that_was_won_by_an_end_is_won() -> None:
    mailbox = wait_matches.opened([a_wait(kind="run", name="run", target="x", due_at=0), a_wait("2")], [])
    assert mailbox.won.keys() == {"1"}
    again = wait_matches.add_waits(mailbox, [a_wait(kind="run", name="run", target="x")])
    assert not again.won
    assert wait_matches.is_open(again, "2")


def test_what_an_end_has_won_is_known_until_its_position_is_done_with() -> None:
    mailbox = wait_matches.fire(wait_matches.fire(EMPTY, "1", 0), "2", 0)
    mailbox = wait_matches.close(mailbox, ["1"], [])
    assert mailbox.won.keys() == {"2"}
    assert wait_matches.close(mailbox, ["2"], []) is EMPTY
    assert wait_matches.continue_anew(mailbox, []) is EMPTY


def test_an_end_that_won_elsewhere_does_not_keep_events_from_open_positions() -> None:
    mailbox = wait_matches.fire(wait_matches.add_waits(wait_matches.opened([], [an_event()]), [a_wait("1")]), "7", 0)
    _, winners = wait_matches.settle(mailbox, NOW)
    assert [event.position for event in winners] == ["1"]


def test_settling_gives_open_positions_the_earliest_that_fit_and_have_not_expired() -> None:
    events = [an_event("old", expires_at=NOW), an_event("b", "b"), an_event("e-1"), an_event("e-2")]
    mailbox = wait_matches.opened([], events)
    mailbox = wait_matches.add_waits(mailbox, [a_wait("1"), a_wait("2", where=(("colour", '"red"'),)), a_wait("3")])
    mailbox, winners = wait_matches.settle(mailbox, NOW)
    assert [(event.id, event.position) for event in winners] == [("e-1", "1"), ("e-2", "3")]
    assert wait_matches.settle(mailbox, NOW)[1] == []


def test_a_where_needs_every_field() -> None:
    wait = a_wait(where=(("colour", '"red"'), ("size", "1")))
    assert wait_matches.accepts(wait, an_event(fields={"size": "1", "colour": '"red"', "more": "2"}))
    assert not wait_matches.accepts(wait, an_event(fields={"colour": '"red"'}))
    assert not wait_matches.accepts(wait, an_event(fields={"colour": '"red"', "size": '"1"'}))


def test_a_closed_position_frees_what_was_sent_and_leaves_what_was_shared() -> None:
    mailbox, _ = wait_matches.put(with_waits(a_wait("1"), a_wait("2")), an_event("mine"))
    mailbox = wait_matches.give(mailbox, an_event("shared", position="2", shared=True))
    assert wait_matches.give(mailbox, an_event("shared", position="2", shared=True)) is mailbox
    closed = wait_matches.close(mailbox, ["1", "2"], [])
    assert [(event.id, event.position) for event in closed.events] == [("mine", None)]
    assert closed.won == {}
    assert wait_matches.close(mailbox, ["1", "2"], ["mine"]) is EMPTY


def test_a_position_that_is_closed_with_all_others_frees_what_was_not_read() -> None:
    mailbox, _ = wait_matches.put(with_waits(a_wait("1")), an_event("e-1"))
    left, freed = wait_matches.closed(mailbox, ("1",), ("another",))
    assert [event.id for _, event in freed] == [event.id for event in left.events] == ["e-1"]
    assert wait_matches.closed(mailbox, ("1",), ("e-1",)) == (EMPTY, [])


def test_expired_events_do_not_count_and_are_forgotten_unless_they_have_won() -> None:
    mailbox, _ = wait_matches.put(with_waits(a_wait()), an_event("won", expires_at=NOW))
    mailbox, _ = wait_matches.put(mailbox, an_event("expired", expires_at=NOW))
    mailbox, _ = wait_matches.put(mailbox, an_event("fresh"))
    assert wait_matches.pending(mailbox, "a", NOW) == 1
    assert [event.id for event in wait_matches.without_expired(mailbox, NOW).events] == ["won", "fresh"]
    assert wait_matches.without_expired(mailbox, NOW - 1) is mailbox


def test_a_timer_wins_an_open_position_once() -> None:
    mailbox = wait_matches.fire(with_waits(a_wait()), "1", 1)
    assert not wait_matches.is_open(mailbox, "1")
    mailbox, given = wait_matches.put(mailbox, an_event())
    assert given.position is None


def test_what_a_position_would_be_given_is_what_settling_gives_it() -> None:
    events = [an_event("old", expires_at=NOW), an_event("b", "b"), an_event("e-1"), an_event("e-2")]
    mailbox = wait_matches.opened([], events)
    options = [a_wait("1", kind="timer", name="timer"), a_wait("1", option=1), a_wait("1", "b", option=2)]
    found = wait_matches.first_of(mailbox, options, NOW)
    assert found is not None
    left, event, option = found
    assert (event.id, option) == ("b", 2)
    assert [other.id for other in left.events] == ["old", "e-1", "e-2"]
    _, (given,) = wait_matches.settle(wait_matches.add_waits(mailbox, options), NOW)
    assert (given.id, given.option) == (event.id, option)
    assert wait_matches.first_of(mailbox, [a_wait("1", "c")], NOW) is None
    assert wait_matches.first_of(mailbox, [a_wait("1", where=(("colour", '"red"'),))], NOW) is None


def test_what_was_read_ahead_is_gone_even_if_it_has_expired_since() -> None:
    mailbox = wait_matches.opened([], [an_event("e-1"), an_event("e-2"), an_event("e-3")])
    left = wait_matches.read_ahead(mailbox, ["e-2", "gone"])
    assert [event.id for event in left.events] == ["e-1", "e-3"]
    assert wait_matches.read_ahead(mailbox, ["e-1", "e-2", "e-3"]) is EMPTY


def test_what_has_won_a_wait_is_not_read_ahead() -> None:
    mailbox, _ = wait_matches.put(with_waits(a_wait("1")), an_event())
    with pytest.raises(InvariantViolated, match="have won a wait"):
        wait_matches.read_ahead(mailbox, ["e"])


def test_an_event_of_which_the_position_is_known_wins_nothing_else() -> None:
    mailbox = with_waits(a_wait("1"), a_wait("2"))
    mailbox, given = wait_matches.put(mailbox, an_event(), only_at="2")
    assert given.position == "2"
    mailbox, given = wait_matches.put(mailbox, an_event("e-2"), only_at="2")
    assert given.position is None
    _, given = wait_matches.put(mailbox, an_event("e-3"), only_at="3")
    assert given.position is None


@pytest.mark.parametrize("seed", range(30))
def test_what_is_unread_never_fits_what_is_open_whatever_was_looked_at(seed: int) -> None:
    """An advance looks at the positions that it opens, and at all of them only if it frees an event."""
    chance = random.Random(seed)
    mailbox, opened = EMPTY, 0
    for number in range(200):
        if chance.random() < 0.5:
            mailbox, _ = wait_matches.put(mailbox, an_event(f"e-{number}", chance.choice("abc")))
        else:
            dropped = tuple(position for position in mailbox.waits if chance.random() < 0.3)
            given = [mailbox.given[position][1].id for position in dropped if position in mailbox.given]
            waits = []
            for _ in range(chance.randrange(4)):
                opened += 1
                waits += [
                    a_wait(str(opened), name, option=option) for option, name in enumerate(chance.choices("abc", k=2))
                ]
            read = tuple(event_id for event_id in given if chance.random() < 0.5)
            op = Advance(
                run_id="r-1", at=NOW, claim=1, cause="", waits=tuple(waits), waits_dropped=dropped, events_read=read
            )
            met, _ = meet(mailbox, op)
            mailbox = mailbox if met is None else met
        assert wait_matches.settle(mailbox, NOW)[1] == []


def test_an_advance_does_not_look_at_positions_that_were_open_before(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Wait] = []
    accepts = wait_matches.accepts
    mailbox = with_waits(*[a_wait(str(number), where=(("n", str(number)),)) for number in range(1_000)])
    mailbox, _ = wait_matches.put(mailbox, an_event("other", fields={"n": "none"}))

    def counting(wait: Wait, event: Event) -> bool:
        looked.append(wait)
        return accepts(wait, event)

    monkeypatch.setattr(wait_matches, "accepts", counting)
    meet(mailbox, Advance(run_id="r-1", at=NOW, claim=1, cause="", waits=(a_wait("x"),), waits_dropped=("5",)))
    wait_matches.put(mailbox, an_event("answer"), only_at="7")
    _, given = wait_matches.put(mailbox, an_event("number", fields={"n": "900"}))
    assert given.position == "900"
    assert [wait.position for wait in looked] == ["x", "7"]


@pytest.mark.parametrize(
    ("few", "seed"),
    [(few, seed) for few, seeds in ((wait_matches.FEW, 30), (0, 10), (10_000, 10)) for seed in range(seeds)],
)
def test_events_go_where_a_plain_search_would_put_them(few: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are looked up by what they wait for. All positions and all events, gone through in order, agree: with
    an index from the first position on, from the seventeenth on, and without an index."""
    monkeypatch.setattr(wait_matches, "FEW", few)
    chance = random.Random(seed)
    mailbox, opened, sent = EMPTY, 0, 0
    plain = Plain()
    for _ in range(400):
        if chance.random() < 0.5:
            sent += 1
            fields = {"x": chance.choice("12"), **({"y": chance.choice("12")} if chance.random() < 0.5 else {})}
            event = an_event(f"e-{sent}", chance.choice("ab"), fields=fields, expires_at=NOW + 10)
            mailbox, given = wait_matches.put(mailbox, event)
            assert (given.position, given.option) == plain.put(event)
        else:
            dropped = tuple(position for position in mailbox.in_order() if chance.random() < 0.2)
            held = [mailbox.given[position][1].id for position in dropped if position in mailbox.given]
            read = tuple(event_id for event_id in held if chance.random() < 0.5)
            waits: list[Wait] = []
            for _ in range(chance.randrange(40) if chance.random() < 0.3 else chance.randrange(4)):
                opened += 1
                for option in range(chance.randrange(1, 3)):
                    shape = chance.choice([(), ("x",), ("y",), ("x", "y")])
                    where = tuple((name, chance.choice("12")) for name in shape)
                    waits.append(a_wait(str(opened), chance.choice("ab"), option=option, where=where))
            op = Advance(
                run_id="r-1", at=NOW, claim=1, cause="", waits=tuple(waits), waits_dropped=dropped, events_read=read
            )
            met, winners = meet(mailbox, op)
            mailbox = mailbox if met is None else met
            assert [(event.id, event.position, event.option) for event in winners] == plain.meet(op)
        assert dict(mailbox.won) == plain.won
        assert [event.id for event in mailbox.events] == [event.id for _, event in plain.events]
    assert opened > 200


class Plain:
    """What a mailbox is to do, without any index."""

    def __init__(self) -> None:
        self.waits: dict[str, list[Wait]] = {}
        self.won: dict[str, tuple[int, str | None]] = {}
        self.events: list[tuple[int, Event]] = []  # all that were not read, by place
        self._sent = 0

    def put(self, event: Event) -> tuple[str | None, int]:
        self.events.append((self._sent, event))
        self._sent += 1
        for position, group in self.waits.items():
            for wait in group if position not in self.won else ():
                if wait_matches.accepts(wait, event):
                    self.won[position] = wait.option, event.id
                    return position, wait.option
        return None, 0

    def meet(self, op: Advance) -> list[tuple[str, str, int]]:
        for position in op.waits_dropped:
            self.waits.pop(position, None)
            self.won.pop(position, None)
        self.events = [placed for placed in self.events if placed[1].id not in op.events_read]
        for wait in op.waits:
            self.waits.setdefault(wait.position, []).append(wait)
        winners: list[tuple[str, str, int]] = []
        for position, group in self.waits.items():
            taken = {event_id for _, event_id in self.won.values()}
            for _, event in self.events if position not in self.won else ():
                options = [wait.option for wait in group if wait_matches.accepts(wait, event)]
                if options and event.id not in taken:
                    self.won[position] = options[0], event.id
                    winners.append((event.id, position, options[0]))
                    break
        return winners
