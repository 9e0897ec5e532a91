"""The coordinator by itself, on a store in memory that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from perdure.coordinator.coordinator import Coordinator
from perdure.errors import (
    CommitConflict,
    CommitRefused,
    EngineStopped,
    Fenced,
    InvariantViolated,
    OutcomeUnknown,
    RunNotFound,
    StoreBroken,
    StoreBusy,
    StoreUnavailable,
)
from perdure.kernel import ops
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.effects import Begin, Drop, Effect, Proceed, Published
from perdure.kernel.rows import Engine, Entry, StreamItem, Wait
from perdure.kernel.rules.starts import Started
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import StoreProxy, check_store
from perdure.testing.clock import VirtualClock
from perdure.values.limits import Limits
from perdure.values.times import to_datetime

T = TypeVar("T")


class ScriptedStore(StoreProxy):
    """Commits go through `gate`, and through what `script` has for them, one piece per call; so do other requests."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(MemoryStore(database))
        self.database = database
        self.batches: list[Batch] = []  # as sent, resends included
        self.script: list[Exception | None] = []
        self.after: list[Exception | None] = []  # raised once the commit has landed
        self.reads: list[Exception | None] = []
        self.refuses: Callable[[Batch], bool] = lambda _: False
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    async def commit(self, batch: Batch) -> Committed:
        self.batches.append(batch)
        self.arrived.set()
        await self.gate.wait()
        if self.script and (error := self.script.pop(0)) is not None:
            raise error
        if self.refuses(batch):
            raise CommitRefused("no")
        committed = await self.inner.commit(batch)
        if self.after and (error := self.after.pop(0)) is not None:
            raise error
        return committed

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self.reads and (error := self.reads.pop(0)) is not None:
            request.close()
            raise error
        return await request


class Bench:
    """A coordinator, its store, and what it told the engine around it."""

    def __init__(self, limits: Limits) -> None:
        self.store = ScriptedStore(MemoryDatabase())
        self.effects: list[Effect] = []
        self.rejoined = 0
        self.stopped_by: BaseException | None = None
        self.enrolled = 0
        self.slots: list[str] = []
        self.coordinator = Coordinator(
            self.store,
            limits=limits,
            clock=VirtualClock(to_datetime(1)),
            workflows=lambda: {("function", "w", ""), ("", "w", "")},
            listener=self,
        )

    async def enroll(self) -> Engine:
        self.enrolled += 1
        return await self.store.enroll(engine_id=f"e{self.enrolled}", host="h", pid=1, workflows=[("w", "")], at=1)

    def perform(self, effects: Iterable[Effect]) -> None:
        self.effects += effects

    def performed(self) -> None:
        """All effects so far are known."""

    def posted(self, slot: str, reply: asyncio.Future[Any]) -> None:
        self.slots.append(slot)

    def lost_track(self) -> None:
        self.rejoined += 1

    def broken(self, error: BaseException) -> None:
        self.stopped_by = error

    async def idle(self) -> None:
        await self.coordinator._parts.idle.wait()

    def submit(self, op: ops.Op) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.coordinator.submit(op))

    async def hold_commits(self, op: ops.Op) -> asyncio.Task[Any]:
        """Submit an op whose commit stays in flight, so that others queue up behind it."""
        self.store.gate.clear()
        self.store.arrived.clear()
        task = self.submit(op)
        await self.store.arrived.wait()
        return task


# Delays of no length: what is tested is their order and number, never their duration.
QUICK = Limits(resend_first_s=1e-9, resend_max_s=1e-9, patience_s=1.0)
IMPATIENT = Limits(resend_first_s=1e-9, resend_max_s=1e-9, patience_s=2.5e-9)


@asynccontextmanager
async def bench(limits: Limits = QUICK) -> AsyncGenerator[Bench, None]:
    made = Bench(limits)
    await made.store.open()
    await made.coordinator.start()
    try:
        yield made
        if made.stopped_by is None:
            await made.idle()
            await check_store(made.store.inner)
    finally:
        made.coordinator.kill()


def append(run_id: str, value: str = "1") -> ops.Append:
    item = StreamItem(run_id=run_id, stream="log", value=value, at=1, position="1", attempt=1)
    return ops.Append(run_id=run_id, at=1, claim=1, stream_items=(item,))


def start(run_id: str, input: str = "{}", **options: Any) -> ops.Start:
    return ops.Start(run_id=run_id, at=1, workflow="w", input=input, **options)


def advance(run_id: str, *seqs: int, **options: Any) -> ops.Advance:
    entries = tuple(
        Entry(run_id=run_id, seq=seq, position=str(seq), kind="step", name="s", value="1", started_at=1, at=2)
        for seq in seqs
    )
    return ops.Advance(run_id=run_id, at=2, claim=options.pop("claim", 1), cause="test", entries=entries, **options)


def ends(run_id: str, seq: int) -> ops.Advance:
    return advance(run_id, seq, end=ops.End(status=Status.SUCCEEDED, outcome=Outcome(output="1")))


def ids(batch: Batch) -> list[str]:
    return list(batch.runs)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------------------------------
# Batches


async def test_replies_and_effects_come_only_after_the_commit() -> None:
    async with bench() as b:
        task = await b.hold_commits(start("a"))
        await turns()
        assert not task.done()
        assert b.effects == []
        assert b.coordinator.loaded("a") is None
        b.store.gate.set()
        started: Started = await task
        await b.idle()
        assert b.effects == [Begin(started.run, "{}")]
        assert b.coordinator.loaded("a") == started.run


async def test_what_arrives_during_a_commit_shares_the_next_one() -> None:
    async with bench() as b:
        first = await b.hold_commits(start("a"))
        rest = [b.submit(start(f"r{number}")) for number in range(30)]
        await turns()
        b.store.gate.set()
        await asyncio.gather(first, *rest)
        assert [len(batch.runs) for batch in b.store.batches] == [1, 30]
        assert [batch.number for batch in b.store.batches] == [1, 2]


async def test_a_batch_is_bounded_in_ops() -> None:
    async with bench(Limits(batch_ops_max=10)) as b:
        first = await b.hold_commits(start("a"))
        rest = [b.submit(start(f"r{number}")) for number in range(25)]
        await turns()
        b.store.gate.set()
        await asyncio.gather(first, *rest)
        assert [len(batch.runs) for batch in b.store.batches] == [1, 10, 10, 5]
        assert b.coordinator.stats.largest_batch == 10


async def test_a_batch_is_bounded_in_bytes_but_takes_one_op_of_any_size() -> None:
    async with bench(Limits(batch_bytes_max=100)) as b:
        first = await b.hold_commits(start("a"))
        sizes = {"b": 40, "c": 60, "d": 1, "e": 500, "f": 1}
        rest = [b.submit(start(run_id, "x" * size)) for run_id, size in sizes.items()]
        await turns()
        b.store.gate.set()
        await asyncio.gather(first, *rest)
        assert [ids(batch) for batch in b.store.batches] == [["a"], ["b", "c"], ["d"], ["e"], ["f"]]


async def test_ops_about_one_run_see_each_other_within_a_batch_and_write_its_row_once() -> None:
    async with bench() as b:
        first = await b.hold_commits(start("a"))
        task = b.submit(start("b"))
        await turns()
        b.coordinator.enqueue(advance("b", 1))
        b.coordinator.enqueue(ends("b", 2))
        b.store.gate.set()
        await asyncio.gather(first, task)
        await b.idle()
        batch = b.store.batches[1]
        assert batch.runs["b"].expected_version is None
        assert batch.runs["b"].run.status == "succeeded"
        assert [entry.seq for entry in batch.journal] == [1, 2]
        assert [row.became for row in batch.audit] == ["running", "succeeded"]


async def test_a_retry_starts_a_batch_of_its_own() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        first = await b.hold_commits(start("other"))
        failed = advance("a", 1, end=ops.End(status=Status.FAILED, outcome=Outcome(failure="{}")))
        ending = b.submit(failed)
        again = b.submit(ops.Retry(run_id="a", at=3, expected_version=2, from_entry=1))
        later = b.submit(start("later"))
        await turns()
        b.store.gate.set()
        await asyncio.gather(first, ending, again, later)
        assert [ids(batch) for batch in b.store.batches[1:]] == [["other"], ["a"], ["a", "later"]]
        assert b.store.batches[3].archive == [("a", 1, 1)]


async def test_submit_batch_answers_each_op_in_order_with_its_reply_or_its_error() -> None:
    async with bench() as b:
        wanted: Sequence[ops.Op] = [
            start("a"),
            ops.Update(run_id="nobody", at=1, tags={}),
            ops.Update(run_id="a", at=1, tags={"k": "v"}),
            ops.Cancel(run_id="nobody", at=1, failure="{}"),
        ]
        one, two, three, four = await b.coordinator.submit_batch(wanted)
        assert isinstance(one, Started)
        assert isinstance(two, RunNotFound)
        assert three.tags == {"k": "v"}
        assert four is False
        assert len(b.store.batches) == 1
        assert await b.coordinator.submit_batch([]) == []


async def test_an_op_that_changes_nothing_writes_nothing() -> None:
    async with bench() as b:
        assert await b.coordinator.submit(ops.Cancel(run_id="nobody", at=1, failure="{}")) is False
        assert b.store.batches == []


# ---------------------------------------------------------------------------------------------------------------------
# Backpressure


async def test_a_full_inbox_makes_callers_wait_but_never_the_engine() -> None:
    async with bench(Limits(inbox_max=3)) as b:
        await b.coordinator.submit(start("a"))
        first = await b.hold_commits(start("b"))
        tasks = [b.submit(start(f"r{number}")) for number in range(10)]
        await turns()
        b.coordinator.enqueue(advance("a", 1))
        b.coordinator.enqueue(advance("a", 2))
        assert len(b.coordinator._parts.inbox) == 4  # two callers beside the one in flight, and what the engine owes
        b.store.gate.set()
        await asyncio.gather(first, *tasks)
        assert all(isinstance(task.result(), Started) for task in tasks)


async def test_more_ops_in_a_batch_than_the_inbox_holds_all_get_through() -> None:
    async with bench(Limits(inbox_max=2)) as b:
        replies = await b.coordinator.submit_batch([start(f"r{number}") for number in range(9)])
        assert all(isinstance(reply, Started) for reply in replies)


@pytest.mark.parametrize("how", ["kill", "stop", "break"])
async def test_callers_who_wait_for_room_hear_that_the_engine_stops(how: str) -> None:
    async with bench(Limits(inbox_max=2)) as b:
        first = await b.hold_commits(start("a"))
        tasks = [b.submit(start(f"r{number}")) for number in range(10)]
        await turns()
        if how == "kill":
            b.coordinator.kill()
        elif how == "stop":
            b.store.gate.set()
            await b.coordinator.stop()
        else:
            b.store.script = [StoreBroken("gone")]
            b.store.gate.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        stopped = [result for result in results if isinstance(result, EngineStopped)]
        assert len(stopped) == (9 if how == "stop" else 11)
        b.stopped_by = b.stopped_by or EngineStopped("")


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_batch_part_of_which_waits_for_room_hears_that_the_engine_stops(how: str) -> None:
    async with bench(Limits(inbox_max=3)) as b:
        first = await b.hold_commits(start("a"))
        batch = asyncio.ensure_future(b.coordinator.submit_batch([start(f"r{number}") for number in range(10)]))
        await turns()
        if how == "kill":
            b.coordinator.kill()
        else:
            b.store.gate.set()
            await b.coordinator.stop()
        kinds = [type(reply) for reply in await batch]
        assert kinds == [EngineStopped if how == "kill" else Started] * 2 + [EngineStopped] * 8
        await asyncio.gather(first, return_exceptions=True)


async def test_a_caller_who_gives_up_a_batch_leaves_room_for_others() -> None:
    async with bench(Limits(inbox_max=2)) as b:
        first = await b.hold_commits(start("a"))
        batch = asyncio.ensure_future(b.coordinator.submit_batch([start("b"), start("c"), start("d")]))
        await turns()
        batch.cancel()
        await turns()
        b.store.gate.set()
        await first
        replies = await b.coordinator.submit_batch([start(f"r{number}") for number in range(5)])
        assert all(isinstance(reply, Started) for reply in replies)
        assert b.coordinator.loaded("b") is not None  # It was queued, and is committed all the same.
        assert b.coordinator.loaded("c") is None
        assert b.coordinator.loaded("d") is None


async def test_a_caller_who_gives_up_leaves_room_for_others() -> None:
    async with bench(Limits(inbox_max=1)) as b:
        first = await b.hold_commits(start("a"))
        waiting = b.submit(start("b"))
        await turns()
        waiting.cancel()
        first.cancel()
        await turns()
        b.store.gate.set()
        assert isinstance(await b.coordinator.submit(start("c")), Started)
        assert b.coordinator.loaded("a") is not None  # It was committed all the same.
        assert b.coordinator.loaded("b") is None


# ---------------------------------------------------------------------------------------------------------------------
# What can go wrong with a commit


async def test_a_busy_store_gets_the_very_same_batch_again() -> None:
    async with bench() as b:
        b.store.script = [StoreBusy("later"), StoreBusy("later"), None]
        await b.coordinator.submit(start("a"))
        one, two, three = b.store.batches
        assert one is two is three
        assert b.coordinator.stats.resends == 2
        assert b.coordinator.stats.commits == 1


@pytest.mark.parametrize("landed", [True, False])
async def test_an_unknown_outcome_is_found_out_by_the_batch_number(landed: bool) -> None:
    async with bench() as b:
        (b.store.after if landed else b.store.script).append(OutcomeUnknown("the line went dead"))
        await b.coordinator.submit(start("a"))
        await b.coordinator.submit(start("b"))
        assert [batch.number for batch in b.store.batches] == [1, 1, 2]
        assert len(b.store.database.audit["a"]) == 1
        assert [engine.batch for engine in await b.store.engines()] == [2]


async def test_a_batch_with_an_unknown_outcome_is_never_given_up() -> None:
    async with bench() as b:
        b.store.after = [OutcomeUnknown("the line went dead")]
        b.store.script = [None, *[StoreBusy("later")] * 20]
        assert isinstance(await b.coordinator.submit(start("a")), Started)
        assert len(b.store.batches) == 22


async def test_whoever_waits_too_long_for_an_unknown_outcome_is_told_so_and_the_batch_is_sent_on() -> None:
    async with bench(IMPATIENT) as b:
        b.store.after = [OutcomeUnknown("the line went dead")]
        b.store.script = [None, *[StoreBusy("later")] * 20]
        with pytest.raises(StoreUnavailable, match="may be written nevertheless"):
            await b.coordinator.submit(start("a"))
        await b.idle()
        assert len(b.store.batches) == 22
        assert b.coordinator.loaded("a") is not None


async def test_after_long_patience_outside_callers_are_told_and_the_engine_keeps_trying() -> None:
    async with bench(IMPATIENT) as b:
        await b.coordinator.submit(start("a"))
        first = await b.hold_commits(start("x"))
        outside = b.submit(start("b"))
        b.coordinator.enqueue(advance("a", 1))
        b.store.script = [None, *[StoreBusy("later")] * 12]
        b.store.gate.set()
        await first
        with pytest.raises(StoreUnavailable):
            await outside
        await b.idle()
        assert b.coordinator.loaded("b") is None
        assert [entry.seq for entry in (await b.store.journal("a"))[1]] == [1]
        assert Proceed("a") in b.effects


async def test_a_store_that_is_away_for_very_long_does_not_wear_the_coordinator_out() -> None:
    async with bench(IMPATIENT) as b:
        await b.coordinator.submit(start("a"))
        b.store.script = [StoreBusy("later")] * 5_000
        b.coordinator.enqueue(advance("a", 1))
        await b.idle()
        assert b.stopped_by is None
        assert len((await b.store.journal("a"))[1]) == 1


async def test_what_the_engine_insists_on_outlasts_a_store_that_is_away() -> None:
    async with bench(IMPATIENT) as b:
        b.store.script = [StoreBusy("later")] * 100
        waiting = asyncio.ensure_future(b.coordinator.submit_internal([start("a"), start("b")]))
        with pytest.raises(StoreUnavailable):
            await b.coordinator.submit(start("c"))
        assert [reply.created for reply in await waiting] == [True, True]


async def test_what_the_engine_insisted_on_is_told_that_it_was_declared_dead() -> None:
    async with bench() as b:
        b.store.script = [Fenced("dead")]
        (reply,) = await b.coordinator.submit_internal([start("a")])
        assert isinstance(reply, Fenced)
        assert isinstance(await b.coordinator.submit(start("a")), Started)


async def test_reads_are_tried_again_too() -> None:
    async with bench() as b:
        b.store.reads = [StoreBusy("later"), StoreBusy("later")]
        assert isinstance(await b.coordinator.submit(start("a")), Started)
    async with bench(IMPATIENT) as b:
        b.store.reads = [StoreBusy("later")] * 10
        with pytest.raises(StoreUnavailable):
            await b.coordinator.submit(start("a"))


async def test_one_refused_op_fails_alone() -> None:
    async with bench() as b:
        b.store.refuses = lambda batch: "r7" in batch.runs
        first = await b.hold_commits(start("a"))
        tasks = [b.submit(start(f"r{number}")) for number in range(20)]
        await turns()
        b.store.gate.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert isinstance(results.pop(8), CommitRefused)
        assert all(isinstance(result, Started) for result in results)
        assert "r7" not in b.store.database.runs


async def test_a_run_whose_progress_is_refused_is_held_with_the_reason() -> None:
    async with bench() as b:
        await b.coordinator.submit_batch([start("good"), start("bad")])
        b.store.refuses = lambda batch: any(entry.run_id == "bad" for entry in batch.journal)
        b.coordinator.enqueue(advance("good", 1))
        b.coordinator.enqueue(advance("bad", 1))
        b.coordinator.enqueue(advance("bad", 2))  # ran ahead, and is dropped with it
        await b.idle()
        assert len((await b.store.journal("good"))[1]) == 1
        bad = (await b.store.load(["bad"]))["bad"].run
        assert bad.hold is not None
        assert bad.hold.kind == "blocked"
        assert bad.owner is None
        assert Drop("bad", "the store has another state") in b.effects
        assert b.coordinator.loaded("bad") is None


async def test_a_run_that_another_engine_took_is_dropped_and_the_rest_of_the_batch_committed() -> None:
    async with bench() as b:
        await b.coordinator.submit_batch([start("mine"), start("theirs")])
        stored = b.store.database.runs["theirs"]
        b.store.database.runs["theirs"] = replace(stored, run=replace(stored.run, owner="e9", claim=2))
        b.coordinator.enqueue(ends("theirs", 1))
        b.coordinator.enqueue(ends("mine", 1))
        await b.idle()
        assert (await b.store.load(["mine"]))["mine"].run.status == "succeeded"
        assert (await b.store.load(["theirs"]))["theirs"].run.owner == "e9"
        assert await b.store.journal("theirs") == ("{}", [])
        assert b.coordinator.loaded("theirs") is None
        assert Drop("theirs", "the store has another state") in b.effects


async def test_what_ran_ahead_of_a_row_that_somebody_changed_is_dropped_and_the_run_begins_from_the_store() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        stored = b.store.database.runs["a"]
        changed = replace(stored.run, tags={"by": "hand"}, version=2, revision=2)
        b.store.database.runs["a"] = replace(stored, run=changed)
        row = b.store.database.audit["a"][1]
        b.store.database.audit["a"][2] = replace(row, seq=2, version=2, was="running", became="updated")
        waits = (Wait(run_id="a", position="t", kind="timer", name="sleep", due_at=9),)
        b.coordinator.enqueue(advance("a", 1, idle=True, waits=waits))
        b.coordinator.enqueue(advance("a", 2, idle=True))
        await b.idle()
        # The run replays an empty journal: had an entry been written, it would meet it as one that it never made.
        assert await b.store.journal("a") == ("{}", [])
        assert b.effects[-2:] == [Drop("a", "the store has another state"), Begin(changed)]
        assert b.coordinator.loaded("a") == changed


async def test_what_steps_of_a_run_said_goes_with_what_ran_ahead() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        await b.coordinator.submit(start("b"))
        b.store.script = [CommitConflict(frozenset({"a"}))]
        b.coordinator.enqueue(advance("a", 1))
        replies = await b.coordinator.submit_internal([append("a"), append("b")])
        assert replies == [False, True]
        assert (await b.store.stream("a", "log", after=0, limit=9)).items == ()
        assert [item.offset for item in (await b.store.stream("b", "log", after=0, limit=9)).items] == [1]


async def test_what_a_step_said_that_the_store_refuses_fails_alone_and_the_run_goes_on() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        b.store.refuses = lambda batch: any(item.value == "bad" for item in batch.stream_items)
        refused, written = await b.coordinator.submit_internal([append("a", "bad"), append("a", "good")])
        assert isinstance(refused, CommitRefused)
        assert written is True
        assert [item.value for item in (await b.store.stream("a", "log", after=0, limit=9)).items] == ["good"]
        run = b.coordinator.loaded("a")
        assert run is not None
        assert run.hold is None


async def test_what_landed_unheard_of_is_told_to_readers_once_it_is_known() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        b.store.after = [OutcomeUnknown("the connection is gone")]
        assert await b.coordinator.submit_internal([append("a")]) == [True]
        await b.idle()
        assert b.effects[-1] == Published("a")
        assert len((await b.store.stream("a", "log", after=0, limit=9)).items) == 1


async def test_rows_that_change_under_every_attempt_stop_the_engine_and_all_callers_hear_of_it() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        b.store.script = [CommitConflict(frozenset({"a"}))] * 200
        task = b.submit(ops.Update(run_id="a", at=1, tags={}))
        with pytest.raises(EngineStopped, match="rows keep changing"):
            await task
        assert b.stopped_by is not None


async def test_a_fenced_engine_drops_everything_registers_anew_and_decides_again_what_callers_asked() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        b.store.database.engines["e1"] = replace(b.store.database.engines["e1"], alive=False)
        first = await b.hold_commits(start("b"))
        second = b.submit(start("c"))
        b.coordinator.enqueue(advance("a", 1))
        await turns()
        b.store.gate.set()
        assert (await first).run.owner == (await second).run.owner == "e2"
        await b.idle()
        assert b.rejoined == 1
        assert b.coordinator.engine.id == "e2"
        assert b.coordinator.loaded("a") is None
        assert Drop("a", "the store has another state") in b.effects
        assert await b.store.journal("a") == ("{}", [])


async def test_a_fenced_engine_that_finds_the_store_busy_registers_as_soon_as_it_can() -> None:
    async with bench() as b:
        b.store.script = [Fenced("you are dead", engine_id="e1")]
        b.store.reads = [None, *[StoreBusy("later")] * 10]
        started: Started = await b.coordinator.submit(start("a"))
        assert started.run.owner == b.coordinator.engine.id != "e1"
        assert b.stopped_by is None


async def test_a_broken_store_stops_the_engine_with_a_clear_error_for_everybody() -> None:
    async with bench() as b:
        first = await b.hold_commits(start("a"))
        queued = b.submit(start("b"))
        await turns()
        b.store.script = [StoreBroken("the disk is gone")]
        b.store.gate.set()
        for task in (first, queued):
            with pytest.raises(EngineStopped, match="the disk is gone"):
                await task
        with pytest.raises(EngineStopped, match="the disk is gone") as stopped:
            await b.coordinator.submit(start("c"))
        assert isinstance(stopped.value.__cause__, StoreBroken)
        assert b.stopped_by is stopped.value
        b.coordinator.enqueue(advance("a", 1))  # Nobody is there to take it; nothing happens.


async def test_a_store_that_breaks_while_a_culprit_is_looked_for_leaves_no_caller_waiting() -> None:
    async with bench() as b:
        first = await b.hold_commits(start("a"))
        tasks = [b.submit(start(f"r{number}")) for number in range(8)]
        await turns()
        b.store.script = [None, CommitRefused("one of you"), None, StoreBroken("gone")]
        b.store.gate.set()
        await first
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, Started) for result in results] == [True] * 4 + [False] * 4
        assert all(isinstance(result, EngineStopped) for result in results[4:])


async def test_a_row_that_breaks_an_invariant_concerns_only_who_asks_for_it() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a", admit=False))
        stored = b.store.database.runs["a"]
        b.store.database.runs["a"] = replace(stored, run=replace(stored.run, completed_at=5))
        bad = b.submit(ops.Update(run_id="a", at=1, tags={}))
        good = b.submit(start("b"))
        with pytest.raises(InvariantViolated):
            await bad
        assert isinstance(await good, Started)
        held = b.store.database.runs["a"].run
        assert held.hold is not None
        assert "table runs, run 'a' is created but completed_at is 5" in held.hold.reason
        b.store.database.runs["a"] = replace(stored, run=replace(held, completed_at=None))  # Somebody corrects it,
        assert await b.coordinator.submit(ops.Resume(run_id="a", at=2))  # and resumes it.


# ---------------------------------------------------------------------------------------------------------------------
# Stopping


async def test_a_graceful_stop_commits_what_is_queued_and_takes_no_more_from_outside() -> None:
    async with bench() as b:
        await b.coordinator.submit(start("a"))
        first = await b.hold_commits(start("b"))
        queued = b.submit(start("c"))
        b.coordinator.enqueue(advance("a", 1))
        await turns()
        stopping = asyncio.ensure_future(b.coordinator.stop())
        await turns()
        with pytest.raises(EngineStopped):
            await b.coordinator.submit(start("d"))
        assert not stopping.done()
        b.store.gate.set()
        await stopping
        assert isinstance(await first, Started)
        assert isinstance(await queued, Started)
        assert len((await b.store.journal("a"))[1]) == 1
        await b.coordinator.stop()


async def test_a_kill_commits_nothing_more_and_tells_everybody() -> None:
    async with bench() as b:
        first = await b.hold_commits(start("a"))
        queued = b.submit(start("b"))
        await turns()
        b.coordinator.kill()
        with pytest.raises(EngineStopped, match="may have been written"):
            await first
        with pytest.raises(EngineStopped, match="nothing was written"):
            await queued
        b.store.gate.set()
        await turns()
        assert b.store.database.runs == {}
        b.coordinator.kill()


async def test_nothing_is_taken_before_the_start() -> None:
    b = Bench(QUICK)
    with pytest.raises(EngineStopped, match="not been started"):
        await b.coordinator.submit(start("a"))
