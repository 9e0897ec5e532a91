"""What JSON cannot hold, or is too long, is refused wherever it is given: nothing else is stored in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Limits, workflow
from perdure.cooperation import Context, Key, Operation, Scope, emit
from perdure.errors import RunFailed, ScopeFailed, UnstorableValue
from perdure.testing import Environment
from tests.cooperation.shop import topic

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]
SCORE = Key[Any]("score", object)
NAN = float("nan")
SMALL = Limits(payload_bytes_max=10_000)
LONG = "x" * 20_000
FOREIGN = "ä" * 6_000  # 12,000 bytes


def doing(what: Callable[[Scope], object]) -> Operation[Message]:
    made = Operation[Message]("root", ROOT)

    @made.step
    async def do(scope: Scope, message: Message) -> None:
        what(scope)

    return made


@pytest.mark.parametrize(
    "what",
    [
        lambda scope: scope.emit(CHILD, {"score": NAN}),
        lambda scope: scope.emit_globally(CHILD, {"scores": [float("inf")]}),
        lambda scope: scope.emit(CHILD, {}, context=Context().put(SCORE, NAN)),
        lambda scope: scope.put(SCORE, {"of": -float("inf")}),
        lambda scope: scope.return_value("score", NAN),
    ],
    ids=["message", "global message", "context of a message", "context", "return value"],
)
async def test_a_step_gives_no_number_that_json_has_not(what: Callable[[Scope], object]) -> None:
    async with Environment([doing(what)]) as env:
        with pytest.raises(ScopeFailed, match="is not a number that JSON has"):
            await (await env.engine.emit(ROOT, {})).finished()


@pytest.mark.parametrize("value", [NAN, LONG], ids=["nan", "long"])
async def test_nor_does_anybody_outside(value: Any) -> None:
    async with Environment([], limits=SMALL) as env:
        await env.engine.topics.register(ROOT, "person")
        with pytest.raises(UnstorableValue):
            await env.engine.emit(ROOT, {"score": value})
        with pytest.raises(UnstorableValue):
            await env.engine.emit(ROOT, {}, context=Context().put(SCORE, value))
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(UnstorableValue):
            await env.engine.topics.complete(emitted.run_ids[0], {"score": value})
        assert len((await env.engine.runs.list()).runs) == 1
        await env.engine.topics.complete(emitted.run_ids[0], {"score": None})
        assert await emitted.returned("score", object) == [None]


@pytest.mark.parametrize("value", [NAN, LONG], ids=["nan", "long"])
async def test_nor_does_a_function(value: Any) -> None:
    @workflow(name="asks")
    async def asks() -> None:
        await emit(ROOT, {"score": value})

    async with Environment([asks], limits=SMALL) as env:
        await env.engine.topics.register(ROOT, "person")
        with pytest.raises(RunFailed, match="UnstorableValue"):
            await env.engine.run(asks())


async def test_who_calls_again_with_a_lower_limit_gets_the_first_hierarchy() -> None:
    async with Environment([]) as env:
        await env.engine.topics.register(ROOT, "person")
        first = await env.engine.emit(ROOT, {"score": LONG}, id="m-1")
        env._options["limits"] = SMALL  # pyright: ignore[reportPrivateUsage]
        await env.restart()
        assert (await env.engine.emit(ROOT, {"score": LONG}, id="m-1")).run_ids == first.run_ids


@pytest.mark.parametrize(
    "what",
    [
        lambda scope: scope.emit(CHILD, {"score": FOREIGN}),
        lambda scope: scope.return_value("score", FOREIGN),
        lambda scope: scope.put(SCORE, FOREIGN),
    ],
    ids=["message", "value", "context"],
)
async def test_the_limit_counts_bytes_and_not_characters(what: Callable[[Scope], object]) -> None:
    async with Environment([doing(what)], limits=SMALL) as env:
        with pytest.raises(ScopeFailed, match=r"has 12,\d\d\d bytes, and may have 10,000"):
            await (await env.engine.emit(ROOT, {})).finished()
        with pytest.raises(UnstorableValue, match=r"12,\d\d\d bytes"):
            await env.engine.emit(ROOT, {"score": FOREIGN})
