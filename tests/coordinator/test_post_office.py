"""Random sequences of waits, sends and ends: no event is lost or given twice, the order rules hold, all stores agree.

One op per batch is compared with a model that could not be simpler; many ops per batch with what must always be true.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.events import Event
from perdure.kernel.ops import Op
from perdure.kernel.rows import Wait
from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.invariants import _overlooked, _problems_of_events
from tests.coordinator.post_office import MailRoom, contents, for_event, post_office

RUNS = ("r-1", "r-2", "r-3")
NAMES = ("a", "b")
COLOURS = ("", '"red"', '"blue"')

Action = tuple[Any, ...]

options = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(COLOURS), st.sampled_from(["after_wait", "after_create", "all"])),
    min_size=1,
    max_size=3,
)
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from(RUNS), options),
    st.tuples(st.just("wait"), st.sampled_from(RUNS), options),
    st.tuples(
        st.just("send"),
        st.sampled_from(NAMES),
        st.sampled_from([None, None, *RUNS]),
        st.sampled_from(["discard", "broadcast", "dead_letter"]),
        st.booleans(),
        st.sampled_from(COLOURS),
    ),
    st.tuples(st.just("send"), st.sampled_from(NAMES), st.none(), st.just("discard"), st.just(True), st.just("")),
    st.tuples(st.just("read"), st.sampled_from(RUNS), st.integers(0, 3)),
    st.tuples(st.just("read"), st.sampled_from(RUNS), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.sampled_from(RUNS), st.integers(0, 3)),
    st.tuples(st.just("end"), st.sampled_from(RUNS)),
)


class Script:
    """Turns actions into ops that make sense now."""

    def __init__(self, office: MailRoom) -> None:
        self.office = office
        self.sent: dict[str, Event] = {}
        self.read: list[tuple[str, str]] = []  # run id, event id
        self.ended: set[str] = set()
        self.open: dict[str, list[str]] = {run_id: [] for run_id in RUNS}
        self._positions = 0

    def ops(self, group: list[Action]) -> list[Op]:
        found = [op for action in group for op in self._op(*action)]
        self.open = {run: [] if run in self.ended else positions for run, positions in self.open.items()}
        return found

    def _op(self, kind: str, *parts: Any) -> list[Op]:
        office = self.office
        if kind == "send":
            name, to, fallback, consumed, colour = parts
            event_id = f"e-{len(self.sent) + 1:03}"
            fields = {"colour": colour} if colour else {}
            op = office.send(
                event_id, name, to, fallback=fallback, consumed=consumed or to is not None, fields=fields
            )  # fmt: skip
            self.sent[event_id] = op.event
            return [op]
        run_id = parts[0]
        if run_id in self.ended:
            return []
        if kind == "end":
            self.ended.add(run_id)
            return [office.end(run_id)]
        if kind == "wait":
            self._positions += 1
            position = f"{self._positions}"
            self.open[run_id].append(position)
            waits = [
                for_event(run_id, position, name, index, [("colour", colour)] if colour else (), mode)
                for index, (name, colour, mode) in enumerate(parts[1])
            ]
            return [office.wait(run_id, position, *waits)]
        mine = self.open[run_id]
        if kind == "read":
            mine = [position for position in mine if (run_id, position) in office.delivered]
        if not mine:
            return []
        position = mine[parts[1] % len(mine)]
        self.open[run_id].remove(position)
        if kind == "drop":
            return [office.drop(run_id, position)]
        event = office.delivered[run_id, position]
        assert isinstance(event, Event)
        self.read.append((run_id, event.id))
        return [office.read(run_id, position, event.id)]


async def check(office: MailRoom, script: Script) -> None:
    """What must be true whatever has happened."""
    loaded = await office.store.load(RUNS)
    places: Counter[str] = Counter(event_id for _, event_id in script.read if script.sent[event_id].consumed)
    for one in loaded.values():
        problems = [*_problems_of_events(one.run, one)]
        problems += [problem async for problem in _overlooked(office.store, one, office.now)]
        assert not problems, problems
        places.update(event.id for event in one.events if event.consumed)
        won = {event.position for event in one.events if event.position is not None}
        in_memory = office.mailbox(one.run.id).won
        assert {position for position, by in in_memory.items() if by[1] is not None} == won
        assert won <= {position for run, position in office.delivered if run == one.run.id}
    places.update(event.id for event in await office.store.events(limit=1000) if event.consumed)
    places.update(letter.id for letter in await office.store.dead_letters())
    for event_id, event in script.sent.items():
        if event.consumed:
            # What was sent to a run that had ended was not sent; what it had not read may be discarded.
            assert places[event_id] == 1 or (event.run_id in script.ended and not places[event_id]), event
    assert max(Counter(script.read).values(), default=1) == 1


def check_counters(path: Path) -> None:
    """SQLite counts what waits in each queue, so that a bound on it costs no counting."""
    with closing(sqlite3.connect(path)) as connection:
        rows = "select name, count(*) from events where run_id is null and consumed group by name"
        assert dict(connection.execute(rows)) == dict(connection.execute("select name, length from queues"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(actions, min_size=1, max_size=6), max_size=12))
def test_whatever_shares_a_batch_nothing_is_lost_or_given_twice_and_all_stores_agree(
    groups: list[list[Action]],
) -> None:
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(compare(groups, SqliteStore(Path(path, "runs.db"))))
        check_counters(Path(path, "runs.db"))


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(actions, min_size=1, max_size=6), max_size=12))
def test_postgres_agrees_too(empty_schema: Callable[[], str], groups: list[list[Action]]) -> None:
    asyncio.run(compare(groups, open_store(empty_schema())))


async def compare(groups: list[list[Action]], store: Store) -> None:
    """Do the same in memory and in a store."""
    async with post_office(MemoryStore()) as one, post_office(store) as other:
        script = Script(one)
        for office in (one, other):
            await office.do(*[office.start(run_id) for run_id in RUNS])
        for group in groups:
            ops = script.ops(group)
            replies = [await office.do(*ops) for office in (one, other)]
            assert [repr(reply) for reply in replies[0]] == [repr(reply) for reply in replies[1]]
            assert one.delivered.keys() == other.delivered.keys()
            assert await contents(one.store, RUNS, NAMES) == await contents(other.store, RUNS, NAMES)
            await check(one, script)


class Model(Struct):
    """The rules, one op at a time, in the plainest words."""

    count: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)  # open ones, the longest waiting first
    own: dict[str, list[Event]] = field(default_factory=dict)
    queue: list[Event] = field(default_factory=list)
    won: dict[tuple[str, str], Event] = field(default_factory=dict)
    had: set[tuple[str, str]] = field(default_factory=set)  # run id, retained event
    dead_letters: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def number(self, event_id: str) -> int:
        return self.numbers[event_id]

    def wait(self, options: tuple[Wait, ...]) -> None:
        run_id = options[0].run_id
        self.count += len(options)
        for event in self.own.get(run_id, []):
            if any(fits(wait, event) for wait in options):
                self.own[run_id].remove(event)
                self._win(options[0], event)
                return
        for event in sorted(self.queue, key=lambda event: self.number(event.id)):
            if any(fits(wait, event) and self._may(wait, event) for wait in options):
                if event.consumed:
                    self.queue.remove(event)
                self._win(options[0], event)
                return
        self.waits += options

    def _may(self, wait: Wait, event: Event) -> bool:
        return event.consumed or (wait.mode != "after_wait" and (wait.run_id, event.id) not in self.had)

    def _win(self, wait: Wait, event: Event) -> None:
        self.won[wait.run_id, wait.position] = event
        self.waits = [w for w in self.waits if (w.run_id, w.position) != (wait.run_id, wait.position)]
        if not event.consumed:
            self.had.add((wait.run_id, event.id))

    def send(self, event: Event) -> None:
        if event.run_id in self.ended:
            return
        self.count += 1
        self.numbers[event.id] = self.count
        if event.run_id is not None:
            for wait in self.waits:
                if wait.run_id == event.run_id and fits(wait, event):
                    self._win(wait, event)
                    return
            self.own.setdefault(event.run_id, []).append(event)
        elif event.consumed:
            self._offer(event)
        else:
            for wait in list(self.waits):
                is_open = (wait.run_id, wait.position) not in self.won
                if is_open and fits(wait, event) and (wait.run_id, event.id) not in self.had:
                    self._win(wait, event)
            self.queue.append(event)

    def _offer(self, event: Event) -> None:
        for wait in self.waits:
            if fits(wait, event):
                self._win(wait, event)
                return
        self.queue.append(event)

    def read(self, run_id: str, position: str) -> None:
        self.won.pop((run_id, position))

    def drop(self, run_id: str, position: str) -> None:
        self.waits = [w for w in self.waits if (w.run_id, w.position) != (run_id, position)]
        event = self.won.pop((run_id, position), None)
        if event is None:
            return
        if event.run_id is None:
            self._back(run_id, event)
            return
        mine = [wait for wait in self.waits if wait.run_id == run_id and fits(wait, event)]
        if mine:
            self._win(mine[0], event)
        else:
            own = [*self.own.get(run_id, []), event]
            self.own[run_id] = sorted(own, key=lambda event: self.number(event.id))

    def _back(self, run_id: str, event: Event) -> None:
        if event.consumed:
            self._offer(event)
        else:
            self.had.discard((run_id, event.id))

    def end(self, run_id: str) -> None:
        self.ended.add(run_id)
        self.waits = [wait for wait in self.waits if wait.run_id != run_id]
        held = [self.won.pop(key) for key in list(self.won) if key[0] == run_id] + self.own.pop(run_id, [])
        for event in sorted(held, key=lambda event: self.number(event.id)):
            if event.run_id is None:
                self._back(run_id, event)
            elif event.fallback == "broadcast":
                self._offer(replace(event, run_id=None))
            elif event.fallback == "dead_letter":
                self.dead_letters.append(event.id)

    def contents(self) -> Any:
        queued: dict[str, list[str]] = {name: [] for name in NAMES}
        for event in sorted(self.queue, key=lambda event: self.number(event.id)):
            queued[event.name].append(event.id)
        won = {key: event.id for key, event in self.won.items()}
        own = {run_id: [event.id for event in events] for run_id, events in self.own.items() if events}
        return won, own, queued, sorted(self.dead_letters)


def fits(wait: Wait, event: Event) -> bool:
    return wait.name == event.name and all(event.fields.get(name) == value for name, value in wait.where)


async def stored(office: MailRoom) -> Any:
    won: dict[tuple[str, str], str] = {}
    own: dict[str, list[str]] = {}
    for run_id, one in (await office.store.load(RUNS)).items():
        for event in one.events:
            if event.position is None:
                own.setdefault(run_id, []).append(event.id)
            else:
                won[run_id, event.position] = event.id
    queued = {name: [event.id for event in await office.store.events(name=name)] for name in NAMES}
    return won, own, queued, [letter.id for letter in await office.store.dead_letters()]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(actions, max_size=40))
def test_one_op_at_a_time_does_what_the_rules_say(script_of: list[Action]) -> None:
    async def scenario() -> None:
        async with post_office(MemoryStore()) as office:
            script, model = Script(office), Model()
            await office.do(*[office.start(run_id) for run_id in RUNS])
            for action in script_of:
                ops: list[Any] = script.ops([action])
                await office.do(*ops)
                for op in ops:
                    if action[0] == "wait":
                        model.wait(op.waits)
                    elif action[0] == "send":
                        model.send(op.event)
                    elif action[0] == "end":
                        model.end(op.run_id)
                    else:
                        (model.read if op.events_read else model.drop)(op.run_id, op.waits_dropped[0])
                assert await stored(office) == model.contents()
                await check(office, script)

    asyncio.run(scenario())
