"""The checker of transactions, on histories that are known to be good, and on histories that are known to be bad."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from perdure.errors import InvalidArguments
from perdure.testing.list_append import Append, Key, Outcome, Read, Transaction, Value, check


def transaction(name: str, *did: str, outcome: Outcome = "committed", at: tuple[float, float] = (0, 0)) -> Transaction:
    """A transaction of a text for each thing that it did: `x+1` appends 1 to x, and `x=123` reads 1, 2 and 3 there."""
    return Transaction(id=name, did=tuple(map(_done, did)), outcome=outcome, began=at[0], ended=at[1])


def _done(text: str) -> Append | Read:
    key, value = text[0], text[2:]
    return Append(key, int(value)) if text[1] == "+" else Read(key, tuple(map(int, value)))


def names(*history: Transaction, real_time: bool = False) -> list[str]:
    return [anomaly.name for anomaly in check(history, real_time=real_time)]


def test_a_serial_history_is_good() -> None:
    history = [
        transaction("a", "x=", "x+1"),
        transaction("b", "x=1", "y+1"),
        transaction("c", "x+2", "x=12", "y=1"),
        transaction("d", "x=12", "y=1"),
    ]
    assert check(history) == []


@pytest.mark.parametrize(
    ("name", "history"),
    [
        ("internal", [transaction("a", "x+1", "x=")]),
        ("internal", [transaction("a", "x=", "x=1"), transaction("b", "x+1")]),
        ("duplicate", [transaction("a", "x+1"), transaction("b", "x=11")]),
        ("phantom value", [transaction("a", "x=7")]),
        ("incompatible order", [
            transaction("a", "x+1"), transaction("b", "x+2"), transaction("c", "x=12"), transaction("d", "x=21")]),
        ("G1a", [transaction("a", "x+1", outcome="aborted"), transaction("b", "x=1")]),
        ("G1b", [transaction("a", "x+1", "x+2"), transaction("b", "x=1"), transaction("c", "x=12")]),
        ("G0", [transaction("a", "x+1", "y+1"), transaction("b", "x+2", "y+2"), transaction("c", "x=12", "y=21")]),
        ("G1c", [transaction("a", "x+1", "y=1"), transaction("b", "y+1", "x=1")]),
        ("G-single", [transaction("a", "x=", "y=1"), transaction("b", "x+1", "y+1"), transaction("c", "x=1")]),
        # Both read the list before the other has appended to it: a lost update, if it were a register.
        ("G-single", [transaction("a", "x=", "x+1"), transaction("b", "x=", "x+2"), transaction("c", "x=12")]),
        # Write skew: each reads what the other is about to write.
        ("G2", [transaction("a", "x=", "y+1"), transaction("b", "y=", "x+1"), transaction("c", "x=1", "y=1")]),
    ],
)  # fmt: skip
def test_each_anomaly_is_found_by_its_name(name: str, history: list[Transaction]) -> None:
    assert name in names(*history)


def test_an_append_of_which_nobody_knows_may_be_there_or_not() -> None:
    appends = transaction("a", "x+1", outcome="unknown")
    assert check([appends, transaction("b", "x=1")]) == []
    assert check([appends, transaction("b", "x=")]) == []


def test_what_was_committed_is_read_by_whoever_begins_later() -> None:
    lost = [transaction("a", "x+1", at=(1, 2)), transaction("b", "x=", at=(3, 4))]
    assert names(*lost) == ["lost append"]
    overlapping = [transaction("a", "x+1", at=(1, 5)), transaction("b", "x=", at=(3, 4))]
    assert check(overlapping) == []


def test_a_read_of_the_past_is_serializable_but_not_in_real_time() -> None:
    history = [
        transaction("a", "x+1", at=(1, 2)),
        transaction("b", "x+2", at=(3, 4)),
        transaction("c", "x=1", at=(5, 6)),
        transaction("d", "x=12", at=(7, 8)),
    ]
    assert check(history) == []
    assert names(*history, real_time=True) == ["G-single in real time"]


def test_a_cycle_is_told_as_a_story() -> None:
    (anomaly,) = check([transaction("a", "x=", "y+1"), transaction("b", "y=", "x+1"), transaction("c", "x=1", "y=1")])
    assert str(anomaly) == "G2: a -rw-> b -rw-> a"


def test_values_and_ids_are_given_once() -> None:
    with pytest.raises(InvalidArguments, match="1 is appended to 'x' twice"):
        check([transaction("a", "x+1"), transaction("b", "x+1")])
    with pytest.raises(InvalidArguments, match="same id"):
        check([transaction("a", "x="), transaction("a", "y=")])


class Lists:
    """A database of lists that runs transactions interleaved: strictly, or with reads of a state that is too old."""

    def __init__(self, chance: random.Random, *, is_strict: bool) -> None:
        self._chance = chance
        self._is_strict = is_strict
        self._lists: dict[Key, tuple[Value, ...]] = defaultdict(tuple)
        self._old: dict[Key, tuple[Value, ...]] = {}
        self._next = 0

    def history(self, count: int) -> list[Transaction]:
        return [self._one(number) for number in range(count)]

    def _one(self, number: int) -> Transaction:
        if self._chance.random() < 0.2:
            self._old = dict(self._lists)
        did: list[Append | Read] = []
        aborts = self._chance.random() < 0.2
        lists = defaultdict(tuple, self._lists)
        for _ in range(self._chance.randrange(1, 5)):
            key = self._chance.choice("abcd")
            if self._chance.random() < 0.5:
                self._next += 1
                lists[key] += (self._next,)
                did.append(Append(key, self._next))
            else:
                touched = any(isinstance(done, Append) and done.key == key for done in did)
                is_old = not self._is_strict and not touched and self._chance.random() < 0.1
                did.append(Read(key, self._old.get(key, ()) if is_old else lists[key]))
        if not aborts:
            self._lists = lists
        outcome: Outcome = "aborted" if aborts else self._chance.choice(("committed", "committed", "unknown"))
        return Transaction(id=str(number), did=tuple(did), outcome=outcome, began=number + 1, ended=number + 1.5)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_serial_database_does_is_good(seed: int) -> None:
    history = Lists(random.Random(seed), is_strict=True).history(300)
    random.Random(seed).shuffle(history)
    assert check(history, real_time=True) == []


def test_a_database_that_reads_old_states_is_caught() -> None:
    caught = [
        bool(check(Lists(random.Random(seed), is_strict=False).history(300), real_time=True)) for seed in range(20)
    ]
    assert all(caught)
