"""Tasks for people and for workers elsewhere: there while their run waits, claimed by one at a time, answered once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import (
    Client,
    Engine,
    Limits,
    NamedEvent,
    NewArtifact,
    TaskView,
    compensate,
    continue_as,
    receive,
    sleep,
    step,
    task,
    workflow,
)
from perdure.errors import (
    InvalidAnswer,
    InvalidArguments,
    Misuse,
    NotInWorkflow,
    RunCancelled,
    RunFailed,
    TaskClosed,
    TaskFailed,
    TaskLost,
    TaskNotFound,
    UnstorableValue,
)
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.values.schemas import misfit

HOUR = timedelta(hours=1)


class Approval(msgspec.Struct):
    ok: bool
    amount: int = 0


@workflow
async def asks(order: str) -> str:
    got = await task(queue="approvals", payload={"order": order}, schema=Approval, title=f"Approve {order}?")
    return f"{order} {got.ok} {got.amount}"


@workflow
async def asks_for_an_hour() -> Any:
    try:
        return await task(queue="approvals", timeout=HOUR)
    except TimeoutError:
        return "late"


@workflow
async def asks_a_worker() -> Any:
    try:
        return await task(queue="gpu", kind="remote", payload=1, schema={"type": "integer"})
    except TaskFailed as failed:
        return f"gave up: {failed.worker}"


async def asked(env: Environment, run_id: str = "r") -> TaskView:
    """The task that a run waits for."""
    await env.quiet()
    (one,) = await env.engine.tasks.list(run=run_id, status="open")
    return one


# Answers.


async def test_a_task_is_there_while_its_run_waits_and_closed_by_its_answer(source: StoreSource) -> None:
    async with Environment([asks], source) as env:
        run = await env.engine.start(asks("o-1"), id="r")
        one = await asked(env)
        assert (one.queue, one.kind, one.title, one.payload) == (
            "approvals", "human", "Approve o-1?", {"order": "o-1"},
        )  # fmt: skip
        assert (one.run_id, one.position, one.worker, one.claims, one.due_at) == ("r", "1", None, 0, None)
        await env.check()
        await env.engine.tasks.answer(one.id, {"ok": True, "amount": 5}, actor="ann")
        assert await run.result() == "o-1 True 5"
        closed = await env.engine.tasks.get(one.id)
        assert (closed.status, closed.answered_by) == ("answered", "ann")
        assert closed.closed_at is not None
        (entry,) = (await env.engine.handle("r").history()).journal
        assert (entry.kind, entry.name, entry.value["value"]["by"]) == ("task", "approvals", "ann")
        await env.check()


async def test_an_answer_that_does_not_fit_is_refused_with_the_path_and_the_task_stays_open(
    source: StoreSource,
) -> None:
    async with Environment([asks], source) as env:
        run = await env.engine.start(asks("o-1"), id="r")
        one = await asked(env)
        with pytest.raises(InvalidAnswer, match=r"at \$\.amount 'much' is not of type integer") as refused:
            await env.engine.tasks.answer(one.id, {"ok": True, "amount": "much"})
        assert (refused.value.path, refused.value.task_id) == ("$.amount", one.id)
        with pytest.raises(InvalidAnswer, match="'ok' is missing"):
            await env.engine.tasks.answer(one.id, {})
        assert (await env.engine.tasks.get(one.id)).status == "open"
        await env.engine.tasks.answer(one.id, Approval(ok=False))
        assert await run.result() == "o-1 False 0"


async def test_a_long_check_of_an_answer_runs_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[int, bool]] = []

    def watched(value: Any, schema: Any, *steps_max: int) -> Any:
        checked.append((len(value), threading.current_thread() is threading.main_thread()))
        return misfit(value, schema, *steps_max)

    monkeypatch.setattr("perdure.api.tasks.misfit", watched)

    @workflow
    async def asks_for_numbers() -> int:
        first = await task(queue="q", schema=list[int])
        return len(first) + len(await task(queue="q", schema=list[int]))

    async with Engine(MemoryStore(), workflows=[asks_for_numbers], poll_s=None) as engine:
        run = await engine.start(asks_for_numbers())
        for numbers in ([1] * 10, [1] * 20_000):
            while not (found := await engine.tasks.list(queue="q", status="open")):
                await asyncio.sleep(0)
            await engine.tasks.answer(found[0].id, numbers)
        assert await run.result() == 20_010
    assert checked == [(10, True), (20_000, True), (20_000, False)], "the loop gives up after a bounded number of steps"


async def test_a_second_answer_is_refused(source: StoreSource) -> None:
    async with Environment([asks], source) as env:
        await env.engine.start(asks("o-1"), id="r")
        one = await asked(env)
        await env.engine.tasks.answer(one.id, {"ok": True}, actor="ann")
        with pytest.raises(TaskClosed, match="answered before by 'ann'") as refused:
            await env.engine.tasks.answer(one.id, {"ok": False})
        assert refused.value.status == "answered"
        assert await env.engine.handle("r").result() == "o-1 True 0"


async def test_of_many_answers_at_once_one_counts(source: StoreSource) -> None:
    async with Environment([asks_for_an_hour], source, autojump_s=None) as env:
        await env.engine.start(asks_for_an_hour(), id="r")
        one = await asked(env)
        answers = [env.engine.tasks.answer(one.id, number) for number in range(20)]
        replies = await asyncio.gather(*answers, return_exceptions=True)
        assert sum(reply is None for reply in replies) == 1
        assert sum(isinstance(reply, TaskClosed) for reply in replies) == 19
        assert await env.engine.handle("r").result() == replies.index(None)


async def test_without_an_answer_in_time_it_is_withdrawn(source: StoreSource) -> None:
    async with Environment([asks_for_an_hour], source, autojump_s=None) as env:
        run = await env.engine.start(asks_for_an_hour(), id="r")
        one = await asked(env)
        assert one.due_at == one.created_at + HOUR
        await env.advance(HOUR)
        assert await run.result() == "late"
        assert (await env.engine.tasks.get(one.id)).status == "withdrawn"
        with pytest.raises(TaskClosed, match="withdrawn: its run 'r' no longer waits"):
            await env.engine.tasks.answer(one.id, 1)
        await env.check()


@workflow
async def gives_up() -> str:
    try:
        async with asyncio.timeout(60):
            await task(queue="approvals")
    except TimeoutError:
        pass
    await receive("go")
    return "gave up"


@workflow
async def laps(number: int) -> int:
    waiting = asyncio.ensure_future(task(queue="approvals"))
    await sleep(1)
    if number < 2:
        await continue_as(laps(number + 1))
    waiting.cancel()
    return number


@step
async def nothing() -> None: ...


@workflow
async def undoes() -> None:
    await compensate(nothing())
    await task(queue="approvals")


async def test_a_task_is_withdrawn_when_code_gives_it_up(source: StoreSource) -> None:
    async with Environment([gives_up], source, autojump_s=None) as env:
        await env.engine.start(gives_up(), id="r")
        one = await asked(env)
        await env.advance(60)
        assert (await env.engine.tasks.get(one.id)).status == "withdrawn"
        await env.check()


@pytest.mark.parametrize("flow", [asks("o"), undoes()], ids=["plain", "compensated"])
async def test_a_task_is_withdrawn_with_the_cancel_of_its_run(flow: Any, source: StoreSource) -> None:
    name, arguments = flow.workflow.name, {"order": "o"} if flow.workflow is asks else {}
    flow.close()
    async with Environment([asks, undoes], source) as env:
        run = await env.engine.start(name, arguments, id="r")
        one = await asked(env)
        await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert (await env.engine.tasks.get(one.id)).status == "withdrawn"
        await env.check()


async def test_a_task_is_withdrawn_with_the_deadline_of_its_run(source: StoreSource) -> None:
    async with Environment([asks], source, autojump_s=None) as env:
        await env.engine.start(asks("o"), id="r", deadline=HOUR)
        one = await asked(env)
        await env.advance(HOUR)
        assert await env.engine.handle("r").status() == "failed"
        assert (await env.engine.tasks.get(one.id)).status == "withdrawn"
        await env.check()


async def test_a_task_is_withdrawn_when_its_run_ends_or_goes_on_as_another_call(source: StoreSource) -> None:
    async with Environment([laps], source) as env:
        assert await env.engine.run(laps(1), id="r") == 2
        assert [one.status for one in await env.engine.tasks.list(run="r")] == ["withdrawn", "withdrawn"]
        await env.check()


@workflow
async def asks_many(count: int) -> list[Any]:
    return list(await asyncio.gather(*(task(queue="approvals", payload=number) for number in range(count))))


async def test_many_tasks_of_one_run_are_answered_in_any_order(source: StoreSource) -> None:
    async with Environment([asks_many], source) as env:
        run = await env.engine.start(asks_many(10), id="r")
        await env.quiet()
        for one in reversed(await env.engine.tasks.list(queue="approvals", status="open")):
            await env.engine.tasks.answer(one.id, one.payload * 2)
            await env.quiet()
            await env.check()
        assert await run.result() == [number * 2 for number in range(10)]


async def test_a_run_that_nobody_has_in_memory_gets_its_answer(source: StoreSource) -> None:
    async with Environment([asks], source, limits=Limits(live_runs_max=1)) as env:
        for number in range(4):
            await env.engine.start(asks(f"o-{number}"), id=f"r-{number}")
            await env.quiet()
        for number in range(4):
            one = await asked(env, f"r-{number}")
            await env.engine.tasks.answer(one.id, {"ok": True})
        for number in range(4):
            assert await env.engine.handle(f"r-{number}").result() == f"o-{number} True 0"


async def test_a_paused_run_gets_its_answer_when_it_goes_on(source: StoreSource) -> None:
    async with Environment([asks], source) as env:
        run = await env.engine.start(asks("o"), id="r")
        one = await asked(env)
        await env.engine.handle("r").pause()
        await env.engine.tasks.answer(one.id, {"ok": True})
        await env.restart()
        await env.engine.handle("r").resume()
        assert await env.engine.handle(run.id).result() == "o True 0"


# Workers.


async def test_a_worker_claims_a_task_and_answers_it(source: StoreSource) -> None:
    async with Environment([asks_a_worker], source, autojump_s=None) as env:
        run = await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        assert await env.engine.tasks.claim("other", "w-1") == []
        (one,) = await env.engine.tasks.claim("gpu", "w-1", lease=30)
        assert (one.kind, one.payload, one.status, one.worker, one.claims) == ("remote", 1, "claimed", "w-1", 1)
        assert await env.engine.tasks.claim("gpu", "w-2") == []
        with pytest.raises(TaskLost, match="'w-1' has"):
            await env.engine.tasks.answer(one.id, 1, worker="w-2")
        await env.engine.tasks.answer(one.id, 7, worker="w-1")
        assert await run.result() == 7
        assert (await env.engine.tasks.get(one.id)).answered_by == "w-1"
        await env.check()


async def test_a_claimed_task_is_open_again_when_its_lease_has_passed(source: StoreSource) -> None:
    async with Environment([asks_a_worker], source, autojump_s=None) as env:
        await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w-1", lease=30)
        await env.advance(20)
        await env.engine.tasks.heartbeat(one.id, "w-1", {"done": 0.5})
        await env.advance(20)
        assert (await env.engine.tasks.get(one.id)).status == "claimed"
        await env.advance(10)
        assert (await env.engine.tasks.get(one.id)).status == "open"
        assert [free.id for free in await env.engine.tasks.list(status="open", queue="gpu")] == [one.id]
        (again,) = await env.engine.tasks.claim("gpu", "w-2")
        assert (again.id, again.claims, again.details) == (one.id, 2, {"done": 0.5})
        for late in (
            env.engine.tasks.answer(one.id, 1, worker="w-1"),
            env.engine.tasks.heartbeat(one.id, "w-1"),
            env.engine.tasks.release(one.id, "w-1"),
            env.engine.tasks.fail(one.id, "w-1", "x", retry=True),
            env.engine.tasks.fail(one.id, "w-1", "x", retry=False),
        ):
            with pytest.raises(TaskLost, match="'w-2' has"):
                await late
        await env.engine.tasks.answer(one.id, 2, worker="w-2")
        assert await env.engine.handle("r").result() == 2
        with pytest.raises(TaskClosed):
            await env.engine.tasks.heartbeat(one.id, "w-2")


async def test_a_late_worker_may_answer_what_nobody_else_has_taken(source: StoreSource) -> None:
    async with Environment([asks_a_worker], source, autojump_s=None) as env:
        run = await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w-1", lease=timedelta(seconds=1))
        await env.advance(60)
        await env.engine.tasks.answer(one.id, 3, worker="w-1")
        assert await run.result() == 3


async def test_a_released_task_is_for_the_next_worker(source: StoreSource) -> None:
    async with Environment([asks_a_worker], source, autojump_s=None) as env:
        await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w-1")
        await env.engine.tasks.release(one.id, "w-1")
        (one,) = await env.engine.tasks.claim("gpu", "w-2")
        await env.engine.tasks.fail(one.id, "w-2", "out of memory", retry=True)
        (one,) = await env.engine.tasks.claim("gpu", "w-3")
        assert (one.error, one.claims) == ("out of memory", 3)


async def test_a_worker_that_gives_up_for_good_fails_the_wait(source: StoreSource) -> None:
    async with Environment([asks_a_worker], source, autojump_s=None) as env:
        run = await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w-1")
        await env.engine.tasks.fail(one.id, "w-1", "no such model", retry=False)
        assert await run.result() == "gave up: w-1"
        assert (await env.engine.tasks.get(one.id)).status == "answered"


@workflow
async def depends_on_a_worker() -> Any:
    return await task(queue="gpu", kind="remote")


async def test_an_answer_brings_artifacts_which_its_run_publishes(source: StoreSource) -> None:
    async with Environment([asks], source) as env:
        run = await env.engine.start(asks("o-1"))
        await env.quiet()
        (one,) = await env.engine.tasks.claim("approvals", "w-1")
        brought = [NewArtifact(name="note", value="all is well"), NewArtifact(name="scan", value={"pages": [1, 2]})]
        await env.engine.tasks.answer(one.id, {"ok": True}, artifacts=brought, worker="w-1")
        await env.restart()
        assert await run_result(env, run.id) == "o-1 True 0"
        assert await env.engine.artifacts.read("note") == "all is well"
        assert await env.engine.artifacts.read("scan") == {"pages": [1, 2]}
        found = await env.engine.artifacts.get("scan", 1)
        assert (found.run_id, found.step, found.form) == (run.id, "w-1", "json")
        assert len(await env.engine.artifacts.list()) == 2


@pytest.mark.parametrize(
    ("artifact", "error"),
    [
        (NewArtifact(name="", value=1), InvalidArguments),
        (NewArtifact(name="raw", value=b"\0"), InvalidArguments),
        (NewArtifact(name="nan", value=float("nan")), UnstorableValue),
        (NewArtifact(name="large", value="x" * 900), UnstorableValue),
    ],
)
async def test_artifacts_that_cannot_be_kept_are_refused_and_the_task_stays_open(
    artifact: NewArtifact, error: type[Exception]
) -> None:
    async with Environment([asks], limits=Limits(payload_bytes_max=1000)) as env:
        await env.engine.start(asks("o-1"))
        await env.quiet()
        (one,) = await env.engine.tasks.list()
        with pytest.raises(error):
            await env.engine.tasks.answer(one.id, {"ok": True}, artifacts=[artifact])
        assert (await env.engine.tasks.get(one.id)).status == "open"


async def run_result(env: Environment, run_id: str) -> Any:
    return await env.engine.handle(run_id).result()


async def test_a_run_that_failed_with_its_task_asks_anew_when_it_is_retried(source: StoreSource) -> None:
    async with Environment([depends_on_a_worker], source, autojump_s=None) as env:
        run = await env.engine.start(depends_on_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w-1")
        await env.engine.tasks.fail(one.id, "w-1", "no such model", retry=False)
        with pytest.raises(RunFailed, match="no such model"):
            await run.result()
        await env.engine.handle("r").retry()
        another = await asked(env)
        assert another.id != one.id
        await env.engine.tasks.answer(another.id, "now")
        assert await env.engine.handle("r").result() == "now"
        await env.check()


async def test_workers_share_a_queue(source: StoreSource) -> None:
    async with Environment([asks_many], source, autojump_s=None) as env:
        run = await env.engine.start(asks_many(30), id="r")
        await env.quiet()
        done: dict[str, list[int]] = {}

        async def work(worker: str) -> None:
            while claimed := await env.engine.tasks.claim("approvals", worker, limit=4):
                for one in claimed:
                    done.setdefault(worker, []).append(one.payload)
                    await env.engine.tasks.answer(one.id, worker, worker=worker)

        await asyncio.gather(*(work(f"w-{number}") for number in range(4)))
        assert sorted(number for numbers in done.values() for number in numbers) == list(range(30))
        answers = await run.result()
        assert all(number in done[worker] for number, worker in enumerate(answers))


# Other processes.


async def test_a_client_answers_a_run_that_an_engine_has_and_one_that_nobody_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Client(url) as client:
        async with Engine(url, workflows=[asks]) as engine:
            run = await engine.start(asks("o-1"), id="r")
            while not (found := await client.tasks.list(run="r")):
                await asyncio.sleep(0.01)
            with pytest.raises(InvalidAnswer):
                await client.tasks.answer(found[0].id, 1)
            await client.tasks.answer(found[0].id, {"ok": True}, actor="ann")
            assert await run.result() == "o-1 True 0"
            with pytest.raises(TaskClosed):
                await client.tasks.answer(found[0].id, {"ok": True})
            await engine.start(asks("o-2"), id="q")
            while not (found := await client.tasks.list(run="q")):
                await asyncio.sleep(0.01)
        await client.tasks.answer(found[0].id, {"ok": True, "amount": 2})
        async with Engine(url, workflows=[asks]) as engine:
            assert await engine.handle("q").result() == "o-2 True 2"


# Crashes.


@workflow
async def asks_twice() -> list[Any]:
    first = await task(queue="approvals", schema=int)
    try:
        second = await task(queue="gpu", kind="remote", timeout=HOUR)
    except TaskFailed:
        second = "failed"
    try:
        third = await task(queue="nobody", timeout=HOUR)
    except TimeoutError:
        third = "late"
    return [first, second, third]


async def test_a_crash_at_any_commit_neither_loses_nor_doubles_an_answer(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> Any:
        engine = env.engine
        await engine.start(asks_twice(), id="r")
        await env.quiet()
        for one in await engine.tasks.list(queue="approvals", status="open"):
            await engine.tasks.answer(one.id, 1)
        await env.quiet()
        for one in await engine.tasks.claim("gpu", "w", lease=3):
            await engine.tasks.heartbeat(one.id, "w", "half")
            await engine.tasks.fail(one.id, "w", "no", retry=False)
        await env.advance(5)
        for one in await engine.tasks.claim("gpu", "w", lease=3):
            await engine.tasks.fail(one.id, "w", "no", retry=False)
        await env.quiet()
        await env.advance(2 * HOUR)
        statuses = [one.status for one in await engine.tasks.list(run="r")]
        return await engine.handle("r").result(), sorted(statuses)

    options: Any = {"autojump_s": None}
    report = await run_with_crashes(scenario, workflows=[asks_twice], store=fresh, **options)
    assert report.result == ([1, "failed", "late"], ["answered", "answered", "withdrawn"])
    assert report.commits >= 6


# What cannot be.


@workflow
async def asks_badly(options: dict[str, Any]) -> None:
    await task(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queue": ""}, "a queue's name"),
        ({"queue": "q", "kind": "alien"}, "'human' or 'remote'"),
        ({"queue": "q", "schema": {"if": {}}}, "the schema cannot be used"),
        ({"queue": "q", "title": "x" * 2001}, "a title"),
    ],
)
async def test_what_cannot_be_asked_is_refused(options: dict[str, Any], match: str) -> None:
    async with Environment([asks_badly]) as env:
        with pytest.raises(RunFailed, match=match):
            await env.engine.run(asks_badly(options))


async def test_verbs_refuse_what_makes_no_sense() -> None:
    with pytest.raises(NotInWorkflow):
        await task(queue="q")
    async with Environment([asks]) as env:
        engine = env.engine
        with pytest.raises(TaskNotFound):
            await engine.tasks.get("none")
        with pytest.raises(TaskNotFound):
            await engine.tasks.answer("none", 1)
        with pytest.raises(TaskNotFound):
            await engine.tasks.heartbeat("none", "w")
        with pytest.raises(Misuse, match=r"list\(\): status is 'open', .*, not 'done'"):
            await engine.tasks.list(status="done")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(Misuse, match="limit"):
            await engine.tasks.list(limit=0)
        with pytest.raises(Misuse, match="limit"):
            await engine.tasks.claim("q", "w", limit=0)
        with pytest.raises(InvalidArguments, match="a lease must be longer than 0"):
            await engine.tasks.claim("q", "w", lease=0)


async def test_an_answer_cannot_be_sent_as_an_event() -> None:
    async with Environment([asks]) as env:
        await env.engine.start(asks("o"), id="r")
        one = await asked(env)
        with pytest.raises(InvalidArguments, match="answer the task"):
            await env.engine.send(NamedEvent(f"perdure.task/{one.id}", {"ok": True}), to="r")


class Rot:
    def encode(self, text: str) -> str:
        return text[::-1]

    decode = encode


async def test_payloads_answers_and_details_go_through_the_codec() -> None:
    async with Environment([asks_a_worker], codec=Rot(), autojump_s=None) as env:
        run = await env.engine.start(asks_a_worker(), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "w")
        await env.engine.tasks.heartbeat(one.id, "w", {"a": 1})
        assert (await env.engine.tasks.get(one.id)).details == {"a": 1}
        await env.engine.tasks.answer(one.id, 5, worker="w")
        assert await run.result() == 5
