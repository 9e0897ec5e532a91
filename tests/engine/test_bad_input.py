"""Whatever is handed in, the answer says what is wrong, where, and what to do; and the engine works as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Engine, receive, sleep, sleep_until, step, workflow
from perdure.errors import (
    DuplicateWorkflow,
    EngineStopped,
    InvalidArguments,
    InvalidDefinition,
    Misuse,
    RunFailed,
    RunNotFound,
    UnknownWorkflow,
)
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.world import steps, waiting

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers

LONG = "x" * 501
BAD_TEXTS: list[Any] = ["", LONG, "nul\0", "\ud800", 5, None, ["r-1"], b"r-1"]


@asynccontextmanager
async def unharmed(source: StoreSource = None, **options: Any) -> AsyncGenerator[Engine]:
    """An engine that must still work, and have nothing stored, after what is done to it."""
    async with Environment([steps, waiting], source, autojump_s=None, **options) as env:
        yield env.engine
        assert (await env.engine.runs.list()).runs == []
        assert await env.engine.run(steps()) == []
        assert await env.check() == 1


# Definitions.


def test_a_method_cannot_be_a_step() -> None:
    with pytest.raises(InvalidDefinition, match=r"method '.*Shop\.charge'.*Make it a function.*Engine\(resources"):

        class Shop:
            @step
            async def charge(self) -> None: ...


@pytest.mark.parametrize("decorate", [step, workflow])
def test_only_functions_that_return_one_value_can_be_decorated(decorate: Callable[[Any], Any]) -> None:
    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(InvalidDefinition, match=r"generator.*return one value"):
            decorate(function)
    for thing in (staticmethod(lambda: 1), classmethod(lambda _: 1), print, int, object(), 5):
        with pytest.raises(InvalidDefinition, match="decorates functions, not"):
            decorate(thing)


def test_a_workflow_is_async() -> None:
    with pytest.raises(InvalidDefinition, match="must be an `async def`, since it awaits its steps"):

        @workflow  # type: ignore[arg-type]
        def flow() -> None: ...


@pytest.mark.parametrize("name", [LONG, "nul\0", "\ud800", 5])
def test_names_that_no_store_could_hold_are_refused_at_the_definition(name: Any) -> None:
    async def work() -> None: ...

    for decorate in (step, workflow):
        with pytest.raises(InvalidDefinition, match="name"):
            decorate(name=name)(work)
    with pytest.raises(InvalidDefinition, match=r"a step's name|name is a text"):
        step(work).options(name=name)


@pytest.mark.parametrize("seconds", [0, -1, timedelta(0)])
def test_a_timeout_is_longer_than_nothing(seconds: Any) -> None:
    for option in ("timeout", "total_timeout"):
        with pytest.raises(InvalidDefinition, match=f"{option} is (longer than nothing|.*not negative)"):

            @step(**{option: seconds})
            async def work() -> None: ...


async def test_an_annotation_that_cannot_be_found_says_which_and_where_to_put_it() -> None:
    @workflow
    async def flow(price: OnlyForCheckers) -> None: ...

    async with Environment([flow]) as env:
        with pytest.raises(InvalidDefinition, match=r"workflow .*flow'.*'OnlyForCheckers' is not defined.*top level"):
            await env.engine.start(flow(1))  # type: ignore[arg-type]
        assert (await env.engine.runs.list()).runs == []


@pytest.mark.parametrize("annotation", ["datetime.Missing", "list[", "5", "dict[set[int], int] | list[int] | set[int]"])
async def test_an_annotation_that_makes_no_sense_fails_before_the_step_runs(annotation: str) -> None:
    touched: list[int] = []

    async def work(number: int) -> None:
        touched.append(number)

    work.__annotations__["return"] = annotation
    broken: Any = step(work)

    @workflow
    async def flow() -> None:
        await broken(1)

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match="annotation") as caught:
            await env.engine.run(flow())
        assert isinstance(caught.value.__cause__, InvalidDefinition)
        assert touched == []


def make(text: str) -> Any:
    @workflow(name="twice")
    async def flow() -> str:
        return text

    return flow


async def test_two_workflows_of_one_name_are_refused_with_both_places() -> None:
    one, two = make("one"), make("two")
    engine = Engine(MemoryStore(), workflows=[one, two])
    with pytest.raises(DuplicateWorkflow, match=r"two workflows are named 'twice': .*test_bad_input.*name="):
        await engine.open()
    async with Engine(MemoryStore(), workflows=[one, one]) as works:
        assert await works.run(one()) == "one"
        with pytest.raises(UnknownWorkflow, match=r"runs another workflow 'twice', the one at .*start it by name"):
            await works.start(two())


@pytest.mark.parametrize("wrong", [make, "twice", None, 5])
async def test_an_engine_takes_workflows(wrong: Any) -> None:
    with pytest.raises(Misuse, match="takes workflows, graphs and operations"):
        await Engine(MemoryStore(), workflows=[wrong]).open()


# Starting.


async def test_what_is_not_a_called_workflow_cannot_be_started(source: StoreSource) -> None:
    @step
    async def work() -> None: ...

    @workflow
    async def unknown() -> None: ...

    async def plain() -> None: ...

    async with unharmed(source) as engine:
        call = work()
        with pytest.raises(Misuse, match=r"cannot be started: only workflows can; await the step inside a workflow"):
            await engine.start(call)  # type: ignore[call-overload]
        call.close()
        coroutine = plain()
        for wrong in (steps, coroutine, 5, None):
            with pytest.raises(Misuse, match="takes a called workflow, as in start"):
                await engine.start(wrong)  # type: ignore[call-overload]
        coroutine.close()
        with pytest.raises(
            UnknownWorkflow, match=r"unknown', only: steps, waiting; add it to Engine\(workflows=\[…\]\)"
        ):
            await engine.start(unknown())


async def test_wrong_arguments_fail_where_the_call_is_written() -> None:
    with pytest.raises(InvalidArguments, match=r"workflow 'waiting'\(\).*too many positional arguments"):
        waiting(1)  # type: ignore[call-arg]
    async with unharmed() as engine:
        with pytest.raises(InvalidArguments, match=r"the input of workflow 'steps'.*Expected `str`, got `int`.*names"):
            await engine.start(steps(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [text for text in BAD_TEXTS if text is not None])
async def test_an_id_that_no_store_could_hold_is_refused(source: StoreSource, text: Any) -> None:
    async with unharmed(source) as engine:
        with pytest.raises(InvalidArguments, match=r"a run's id|id is a text"):
            await engine.start(steps(), id=text)


@pytest.mark.parametrize("text", BAD_TEXTS)
async def test_tags_that_no_store_could_hold_are_refused(source: StoreSource, text: Any) -> None:
    async with unharmed(source) as engine:
        with pytest.raises(InvalidArguments, match=r"tag 'key'|tags\['key'\]"):
            await engine.start(steps(), tags={"key": text})
        if isinstance(text, str):
            with pytest.raises(InvalidArguments, match="a tag's key"):
                await engine.start(steps(), tags={text: "value"})


@pytest.mark.parametrize("tags", [["a"], "a", 5])
async def test_tags_are_a_mapping(tags: Any) -> None:
    async with unharmed() as engine:
        with pytest.raises(InvalidArguments, match="tags is a mapping"):
            await engine.start(steps(), tags=tags)


@pytest.mark.parametrize("deadline", [-5, float("nan"), "tomorrow", timedelta.max, timedelta(days=3_000_000)])
async def test_a_deadline_that_is_none_is_refused(source: StoreSource, deadline: Any) -> None:
    async with unharmed(source) as engine:
        with pytest.raises(InvalidArguments, match="deadline"):
            await engine.start(steps(), deadline=deadline)


@pytest.mark.parametrize("input", [[1], 5, "text", {"a"}])
async def test_an_input_that_is_no_mapping_is_refused(input: Any) -> None:
    async with Environment([naps]) as env:
        with pytest.raises(InvalidArguments, match="input is a mapping"):
            await env.engine.start("bad_input.naps", input)


@workflow(name="bad_input.naps")
async def naps() -> str:
    wrong: Any
    for wrong in ("1", None, float("nan"), float("inf"), float("-inf"), 1e300, 10**400, timedelta.max):
        with pytest.raises(Misuse, match=r"is a duration|longer than any run lives"):
            await sleep(wrong)
    for wrong in ("1", float("nan"), float("inf"), 1e300, 10**400, timedelta.max):
        with pytest.raises(Misuse, match=r"is a duration|longer than any run lives"):
            await receive("bad_input.never", timeout=wrong)
    for wrong in ("2030", 5, None):
        with pytest.raises(Misuse, match="is a datetime with a time zone"):
            await sleep_until(wrong)
    for wrong in (-1e308, -1, timedelta(microseconds=-1)):
        with pytest.raises(Misuse, match="finite and not negative"):
            await sleep(wrong)
    await sleep(0)
    return "awake"


async def test_a_duration_that_is_none_is_refused_where_it_is_given() -> None:
    async with Environment([naps]) as env:
        assert await (await env.engine.start(naps(), id="r")).result() == "awake"


async def test_a_deadline_needs_a_time_zone() -> None:
    async with unharmed() as engine:
        with pytest.raises(Misuse, match=r"has no time zone; use datetime\.now\(UTC\)"):
            await engine.start(steps(), deadline=datetime(2031, 1, 1))  # noqa: DTZ001 - on purpose


# Asking about runs.


@pytest.mark.parametrize("text", BAD_TEXTS)
async def test_an_id_that_nobody_can_have_harms_nothing(source: StoreSource, text: Any) -> None:
    async with unharmed(source) as engine:
        requests: list[Callable[[], Any]] = [
            lambda: engine.runs.get(text),
            lambda: engine.runs.get_many([text]),
            lambda: engine.handle(text).history(),
            lambda: engine.handle(text).cancel(),
            lambda: engine.handle(text).retry(),
            lambda: engine.handle(text).pause(),
            lambda: engine.handle(text).resume(),
            lambda: engine.handle(text).update(tags={}),
            lambda: engine.handle(text).result(),
            lambda: engine.handle(text).status(),
        ]
        for request in requests:
            with pytest.raises(InvalidArguments, match=r"a run's id|id is a text"):
                await request()


@pytest.mark.parametrize("text", ["\ud800", "nul\0", "x" * 10_001, 5])
async def test_reasons_and_actors_that_no_store_could_hold_harm_nothing(source: StoreSource, text: Any) -> None:
    async with unharmed(source) as engine:
        for request in (
            engine.handle("r-1").cancel(reason=text),
            engine.handle("r-1").cancel(actor=text),
            engine.handle("r-1").pause(reason=text),
            engine.handle("r-1").pause(actor=text),
            engine.handle("r-1").retry(actor=text),
            engine.handle("r-1").resume(actor=text),
            engine.start(steps(), actor=text),
            engine.handle("r-1").update(tags={}, actor=text),
        ):
            with pytest.raises(InvalidArguments, match=r"reason|actor"):
                await request


async def test_a_run_that_is_not_there_is_said_to_be_missing() -> None:
    async with unharmed() as engine:
        for request in (
            engine.handle("x").history(),
            engine.handle("x").retry(),
            engine.handle("x").pause(),
            engine.handle("x").resume(),
        ):
            with pytest.raises(RunNotFound, match=r"no run has the id 'x'"):
                await request
        with pytest.raises(RunNotFound):
            await engine.handle("x").result()
        with pytest.raises(InvalidArguments, match=r"for the one run 'x' use get\(\)"):
            await engine.runs.get_many("x")


@pytest.mark.parametrize("cursor", ["", "x", ":", "1:", ":r-1", "²:r-1", "--1:r-1", "9" * 30 + ":r-1"])
async def test_a_cursor_that_no_page_gave_is_refused(source: StoreSource, cursor: str) -> None:
    async with unharmed(source) as engine:
        with pytest.raises(Misuse, match="is not a cursor: pass the one that the previous page gave"):
            await engine.runs.list(cursor=cursor)


async def test_filters_that_make_no_sense_are_refused(source: StoreSource) -> None:
    async with unharmed(source) as engine:
        with pytest.raises(Misuse, match="no such status: sleeping; use one of created, running, suspended"):
            await engine.runs.list(status=["running", "sleeping"])
        for limit in (0, -1, 1001):
            with pytest.raises(Misuse, match="limit is between 1 and 1000"):
                await engine.runs.list(limit=limit)
        with pytest.raises(Misuse, match="has no time zone"):
            await engine.runs.list(created_from=datetime(2030, 1, 1))  # noqa: DTZ001 - on purpose


async def test_an_update_of_nothing_is_refused() -> None:
    async with Environment([waiting], autojump_s=None) as env:
        await env.engine.start(waiting(), id="r-1")
        with pytest.raises(Misuse, match="nothing to update for run 'r-1': give tags or deadline"):
            await env.engine.handle("r-1").update()


# An engine that is not there.


REQUESTS: list[Callable[[Engine], Any]] = [
    lambda engine: engine.start(steps()),
    lambda engine: engine.run(steps()),
    lambda engine: engine.runs.get("r-1"),
    lambda engine: engine.runs.get_many([]),
    lambda engine: engine.runs.list(),
    lambda engine: engine.handle("r-1").history(),
    lambda engine: engine.handle("r-1").update(tags={}),
    lambda engine: engine.handle("r-1").cancel(),
    lambda engine: engine.handle("r-1").retry(),
    lambda engine: engine.handle("r-1").pause(),
    lambda engine: engine.handle("r-1").resume(),
    lambda engine: engine.recover(),
    lambda engine: engine.handle("r-1").result(),
]


async def test_an_engine_that_was_not_opened_says_how_to_open_it(source: StoreSource) -> None:
    engine = Engine(MemoryStore(), workflows=[steps])
    for request in REQUESTS:
        with pytest.raises(EngineStopped, match="not opened yet: use it inside `async with Engine"):
            await request(engine)
    await engine.shutdown()
    async with engine:
        assert await engine.run(steps()) == []


async def test_an_engine_that_was_shut_down_says_so(source: StoreSource) -> None:
    async with Environment([steps, waiting], source) as env:
        engine = env.engine
        run = await engine.start(waiting(), id="r-1")
        await engine.shutdown()
        for request in REQUESTS:
            with pytest.raises(EngineStopped, match="was shut down; open a new one"):
                await request(engine)
        with pytest.raises(EngineStopped):
            await run.result()
        with pytest.raises(Misuse, match="this engine was opened before; make a new one"):
            await engine.open()
        env.kill()


async def test_calls_that_are_not_made_leave_no_warning() -> None:
    async with unharmed() as engine:
        call = steps("a")
        with pytest.raises(InvalidArguments):
            await engine.start(call, id="")
        del call
        await asyncio.sleep(0)
