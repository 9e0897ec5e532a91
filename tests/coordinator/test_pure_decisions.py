"""While a batch is decided nobody is asked: no store, no clock, no model. So it comes to the same whenever that is.

Every call that Python makes meanwhile is watched, for ops of every kind, and for whole programs of all three models.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import product
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Event, receive, sleep, start, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.coordinator import settlement
from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.batch_decisions import DecidedBatch, decide_batch, decide_in_pieces
from perdure.coordinator.decision_inputs import Knowledge
from perdure.coordinator.memory import Memory
from perdure.coordinator.queued_ops import Item
from perdure.graph import Graph
from perdure.kernel import ops, wait_matches
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.artifacts import Chunk
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.decision import Decision
from perdure.kernel.events import Event as SentEvent
from perdure.kernel.operation_notices import Readiness
from perdure.kernel.pieces import Pieces
from perdure.kernel.records import Record
from perdure.kernel.rows import Engine, Entry, StreamItem, Wait
from perdure.kernel.runs import Hold, Outcome, Run
from perdure.kernel.status import FINISHED, Status
from perdure.kernel.tasks import Task
from perdure.ports import LoadedRun
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

# ---------------------------------------------------------------------------------------------------------------------
# What is watched

DECIDING = {
    "batch_builder", "batch_context", "batch_decisions", "damage", "decision_inputs", "memory", "queued_ops",
    "runless_rows",
}  # fmt: skip
ALLOWED = ("perdure.kernel.", "perdure.errors")
# Libraries that compute and nothing else, and what makes classes of `from __future__` annotations.
PLAIN = ("msgspec", "enum", "collections", "typing", "re", "abc", "functools", "contextlib", "builtins", "json")
CLOCKS = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "now", "utcnow", "urandom", "getrandbits"}


class Asked(AssertionError):
    """Somebody was asked while a batch was decided."""


@contextmanager
def nobody_is_asked() -> Iterator[list[str]]:
    """Collect all calls that go beyond the kernel and what decides a batch."""
    asked: list[str] = []

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            module = str(frame.f_globals.get("__name__"))
            if module == __name__ or not is_allowed(module):
                asked.append(f"{module}:{frame.f_code.co_qualname if sys.version_info >= (3, 11) else ''}")
        elif event == "c_call" and getattr(called, "__name__", "") in CLOCKS:
            asked.append(f"{called!r}")

    before = sys.getprofile()
    gc.disable()  # A collection calls what other tools have registered for it.
    sys.setprofile(watch)
    try:
        yield asked
    finally:
        sys.setprofile(before)
        gc.enable()
        asked[:] = [one for one in asked if "nobody_is_asked" not in one and "contextlib" not in one]


def is_allowed(module: str) -> bool:
    if module.startswith("perdure.coordinator."):
        return module.removeprefix("perdure.coordinator.") in DECIDING
    return module.startswith(ALLOWED) or module.split(".", maxsplit=1)[0] in PLAIN


def watched(decide: Callable[[], Any]) -> Any:
    with nobody_is_asked() as asked:
        found = decide()
    if asked:
        raise Asked(f"while a batch was decided, these were called: {sorted(set(asked))}")
    return found


def test_the_watch_sees_clocks_stores_and_models() -> None:
    import time

    from perdure.models.cooperation.children import Children
    from perdure.storage.memory import MemoryStore

    for ask in (time.time, Children, MemoryStore):
        with pytest.raises(Asked):
            watched(lambda ask=ask: ask())  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------------------
# Ops of every kind

ME = "e-1"
ENGINE = Engine(id=ME, epoch=1, alive=True, batch=0, host="h", pid=1, workflows=[], started_at=1)
BASE: dict[str, Any] = {"run_id": "r", "at": 9}
EVENT = SentEvent(id="ev", name="paid", value="{}", run_id="r", expires_at=90, at=9)
START = ops.Start(run_id="new", at=9, workflow="w", input="{}", parent_id="r", fresh=True)
NOTICE = ops.Notify(run_id="r", at=9, kind="ask", call_failure="{}")
ENTRY = Entry(run_id="r", seq=1, position="1", kind="step", name="s", value='"v"', started_at=5, at=9)
CODE = {("function", "w", ""), ("", "w", "")}
TIMER = Wait(run_id="r", position="2", kind="timer", name="sleep", due_at=20, since=9)
PAYMENT = Wait(run_id="r", position="1", kind="event", name="paid", since=9)
TASK = Task(
    id="t",
    run_id="r",
    position="1",
    queue="q",
    kind="human",
    title="t",
    schema="{}",
    payload="{}",
    worker="w",
    lease_until=99,
    created_at=1,
)
RECORD = Record(kind="k", name="n", version=1, digest="d", actor="me", at=9, body="{}")
NEWER = replace(RECORD, digest="e")
TOKEN = StoredToken(name="n", version=1, digest="d", actor="me", at=9, body="{}")
NEXT_TOKEN = replace(TOKEN, version=2)
ADVANCE = ops.Advance(**BASE, claim=1, cause="step finished")
COOPERATE = ops.Cooperate(**BASE, claim=1, cause="step", status=Status.SUSPENDED, added=Cooperation(), awaits=("c",))

EXAMPLES: dict[type[ops.Op], list[ops.Op]] = {
    ops.Start: [START, replace(START, run_id="r", fresh=False), replace(START, admit=False)],
    ops.Advance: [
        replace(ADVANCE, entries=(ENTRY,), plain=True),
        replace(ADVANCE, waits=(TIMER,), idle=True, starts=(START,), cancels=("c",)),
        replace(ADVANCE, end=ops.End(status=Status.SUCCEEDED, outcome=Outcome(output="1"))),
        replace(ADVANCE, end=ops.End(status=Status.FAILED, outcome=Outcome(failure="{}")), undo=1),
        replace(
            ADVANCE,
            continuation=ops.Continuation(workflow="w", workflow_version="", input="{}", origin="w 1"),
        ),
    ],
    ops.Append: [
        ops.Append(**BASE, claim=1, stream_items=(StreamItem(run_id="r", stream="log", offset=1, value="1", at=9),))
    ],
    ops.Deposit: [ops.Deposit(**BASE, claim=1, chunks=(Chunk(run_id="r", artifact_id="x", number=0, data=b"1"),))],
    ops.Answer: [ops.Answer(**BASE, task_id="t", event=EVENT)],
    ops.Send: [
        ops.Send(**BASE, event=EVENT),
        ops.Send(**BASE, event=replace(EVENT, key="k"), strict=True),
        ops.Send(run_id="", at=9, event=replace(EVENT, run_id=None)),
        ops.Send(**BASE, event=EVENT, dead_letter="l"),
    ],
    ops.Spread: [ops.Spread(run_id="", at=9, event_id="ev")],
    ops.Forget: [ops.Forget(run_id="", at=9, dead_letter="l"), ops.Forget(run_id="", at=9, dead_letter="gone")],
    ops.Due: [ops.Due(**BASE, claim=1, position="1", option=0)],
    ops.Wake: [ops.Wake(**BASE), ops.Wake(**BASE, then=replace(ADVANCE, claim=2, entries=(ENTRY,)))],
    ops.CheckFence: [ops.CheckFence(run_id="", at=9)],
    ops.Take: [ops.Take(**BASE, claim=1, orphaned=orphaned, recoveries_max=0) for orphaned in (True, False)],
    ops.Count: [ops.Count(**BASE, claim=1, change=1)],
    ops.Release: [ops.Release(**BASE, claim=1)],
    ops.Cancel: [ops.Cancel(**BASE, failure="{}")],
    ops.Expire: [ops.Expire(**BASE, failure="{}")],
    ops.Retry: [ops.Retry(**BASE, expected_version=3)],
    ops.Update: [ops.Update(**BASE, tags={"a": "b"}), ops.Update(**BASE, deadline=50)],
    ops.SetHold: [ops.SetHold(**BASE, hold=Hold(kind="paused", reason="by hand"))],
    ops.Resume: [ops.Resume(**BASE)],
    ops.Notify: [
        ops.Notify(**BASE, kind=kind, child="c", call_failure="{}")
        for kind in ("news", "ask", "undo", "join", "stop", "fence")
    ],
    ops.NotifyMembers: [ops.NotifyMembers(run_id="t", at=9, token="t", notices=(NOTICE,), rest=(1, "r"))],
    ops.Emit: [
        ops.Emit(run_id="", at=9, added=Cooperation(registry_version=7), starts=(replace(START, parent_id=None),))
    ],
    ops.Settle: [
        ops.Settle(
            **BASE,
            status=Status.CANCELLED,
            added=Cooperation(),
            outcome=Outcome(failure="{}"),
            answer="{}",
            otherwise="{}",
            parent_id="p",
        )
    ],
    ops.PutRecord: [ops.PutRecord(run_id="", at=9, record=RECORD), ops.PutRecord(run_id="", at=9, record=NEWER)],
    ops.PutToken: [ops.PutToken(run_id="", at=9, token=TOKEN), ops.PutToken(run_id="", at=9, token=NEXT_TOKEN)],
    ops.PutSession: [
        ops.PutSession(run_id="", at=9, session=StoredSession(id="s", until=20, actor="me", at=9, body="{}"))
    ],
    ops.EndSession: [ops.EndSession(run_id="", at=9, id="s")],
    ops.RegisterHandlers: [ops.RegisterHandlers(run_id="", at=9, handlers=(("orders", "place"),))],
    ops.RetireHandlers: [ops.RetireHandlers(run_id="", at=9, handlers=(("orders", "place"), ("orders", "nobody")))],
    ops.ReleaseTask: [ops.ReleaseTask(run_id="", at=9, task_id="t", worker="w", error=error) for error in (None, "e")],
    ops.CancelScope: [ops.CancelScope(**BASE, added=Cooperation(), notices=(NOTICE,))],
    ops.UndoScope: [ops.UndoScope(**BASE, added=Cooperation(), notices=(NOTICE,))],
    ops.Cooperate: [
        COOPERATE,
        replace(COOPERATE, status=Status.RUNNING, awaits=()),
        replace(COOPERATE, status=Status.SUCCEEDED, outcome=Outcome(output="null"), is_undone=True),
        replace(COOPERATE, starts=(replace(START, bond="called"),), notices=(NOTICE,)),
        replace(COOPERATE, added=Cooperation(registry_version=7)),
    ],
}


def kinds(above: type[ops.Op] = ops.Op) -> set[type[ops.Op]]:
    below = {kind for kind in above.__subclasses__() if inspect.getmodule(kind) is ops}
    return below.union(*map(kinds, below))


def a_run(status: Status, model: str, owner: str | None) -> Run:
    is_over = status in FINISHED
    return Run(
        id="r",
        workflow="w",
        model=model,
        status=status,
        version=3,
        revision=4,
        owner=None if is_over else owner,
        claim=1,
        parent_id="p",
        bond="called" if model == "function" else "awaited",
        origin="p/r m" if model == "operation" else "",
        deadline=8,
        undo=1,
        created_at=1,
        started_at=1,
        updated_at=2,
        completed_at=2 if is_over else None,
    )


def situations() -> Iterable[tuple[Memory, BatchContext]]:
    """Runs of all statuses and of two models: in memory, loaded and nobody's, another engine's; and no run at all."""
    yield Memory(), BatchContext()
    for status in Status:
        for model in ("function", "operation"):
            for owner in (ME, None, "e-2"):
                run, memory, context = a_run(status, model, owner), Memory(), BatchContext(children={"r": ["c"]})
                context.dead_letters.add("l")
                context.tasks["t"] = TASK
                context.records["k", "n"] = RECORD
                context.tokens["n"] = TOKEN
                context.handlers.add(("orders", "place"))
                if run.owner == ME:
                    memory.runs["r"] = run
                    memory.mailboxes["r"] = wait_matches.add_waits(wait_matches.EMPTY, (PAYMENT, TIMER))
                    memory.readiness["r"] = Readiness(1, 2, 1, 0).awaiting(("c", "d"))
                else:
                    context.runs["r"] = LoadedRun(run=run, waits=(TIMER,), events=(EVENT,))
                yield memory, context


def test_there_is_an_example_of_every_op() -> None:
    assert set(EXAMPLES) == kinds()


@pytest.mark.parametrize("kind", sorted(kinds(), key=repr))
def test_every_op_is_decided_without_asking_anybody(kind: type[ops.Op]) -> None:
    decided = 0
    for memory, context in situations():
        for op, version in product(EXAMPLES[kind], (None, 8)):
            known = Knowledge(memory=memory, workflows=CODE, engine=ENGINE, number=1, now=9, registry_version=version)
            items = [Item(op, None, False, mail) for mail in (0, 5)]
            batch: DecidedBatch = watched(partial(decide_batch, items, context, known))
            assert not batch.bugs, batch.bugs
            again = decide_batch(items, context, known)
            assert [str(decision) for _, decision in again.decided] == [str(decision) for _, decision in batch.decided]
            decided += sum(isinstance(decision, Decision) for _, decision in batch.decided)
    assert decided or kind in (ops.Advance, ops.Cooperate)


# ---------------------------------------------------------------------------------------------------------------------
# Whole programs

ORDERS, PARTS = Topic("pure.orders", dict), Topic("pure.parts", dict)


class Paid(Event, event_name="pure.paid"):
    pass


@step
async def work(number: int) -> int:
    return number


@workflow(name="pure.child")
async def child(number: int) -> int:
    return await work(number)


@workflow(name="pure.parent")
async def parent() -> int:
    await sleep(timedelta(seconds=1))
    await start(child(1), detached=True)
    await receive(Paid)
    return await child(2)


def a_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("pure.graph")
    graph.node("one", work, input={"number": "1"})
    graph.node("two", work, input={"number": "2"})
    graph.edge("one", "two")
    return graph


def operations() -> list[Operation[Any]]:
    order, part = Operation("order", ORDERS), Operation("part", PARTS)

    @order.step
    async def fan_out(scope: Scope, message: dict[str, Any]) -> None:
        for _ in range(3):
            await scope.emit(PARTS, message)

    @part.step
    async def make(scope: Scope, message: dict[str, Any]) -> None:
        if message["fails"]:
            raise ValueError("no")

    return [order, part]


async def test_an_engine_decides_without_asking_anybody(source: StoreSource, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def decide(*known: Any) -> Pieces[DecidedBatch]:
        pieces = decide_in_pieces(*known)
        while True:
            try:
                watched(lambda: next_of(pieces))
            except StopPieces as done:
                batches.append(1)
                return done.found
            yield

    monkeypatch.setattr(settlement, "decide_in_pieces", decide)
    graph = a_graph()
    async with Environment([parent, child, graph, *operations()], source) as env:
        run = await env.engine.start(parent(), id="r")
        await env.engine.start(graph({}), id="g")
        roots = [await env.engine.emit(ORDERS, {"fails": fails}) for fails in (False, True)]
        await env.settle()
        assert await roots[0].roll_back()
        await env.advance(2)
        await env.engine.send(Paid(), to="r")
        assert await run.result() == 2
        await env.settle()
        await env.check()
    assert len(batches) > 5


class StopPieces(Exception):
    def __init__(self, found: DecidedBatch) -> None:
        super().__init__()
        self.found = found


def next_of(pieces: Pieces[DecidedBatch]) -> None:
    try:
        next(pieces)
    except StopIteration as done:
        raise StopPieces(done.value) from None
