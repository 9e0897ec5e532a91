"""Steps and children that the code calls with other arguments than the journal has them with."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from perdure import (
    NamedEvent,
    Retry,
    Workflow,
    compensate,
    current_run,
    current_step,
    receive,
    sleep,
    start,
    step,
    workflow,
)
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.values.digests import BYTES_MAX, LARGE, digest_of

HOUR = timedelta(hours=1)


@step
async def charge(order: str, amount: float = 1, *, note: str = "") -> str:
    return f"charged {amount} for {order}"


@step
async def pack(goods: list[str]) -> int:
    goods.append("a card")  # What a step does to its arguments is not what it was called with.
    return len(goods)


@step(process=True)
def crunch(number: int) -> int:
    return number + 1


@step(retry=Retry(attempts=3, initial=HOUR))
async def flaky(order: str) -> str:
    if current_step().attempt == 1:
        raise ConnectionError("try again")
    return f"done for {order}"


@step(retry=Retry.never())
async def fails(order: str) -> str:
    raise ValueError(order)


@workflow
async def ships(order: str) -> str:
    return f"shipped {order}"


@workflow
async def ships_later(order: str) -> str:
    return f"shipped {order} {await receive('truck')}"


Body = Callable[[str], Any]


async def charges(order: str) -> str:
    done = await charge("a")
    await receive("go")
    return done


async def charges_another(order: str) -> str:
    done = await charge("b")
    await receive("go")
    return done


async def charges_by_name(order: str) -> str:
    done = await charge(order="a")
    await receive("go")
    return done


async def charges_with_a_note(order: str) -> str:
    done = await charge("a", note="b")
    await receive("go")
    return done


async def packs(order: str) -> str:
    done = await pack(["a"])
    await receive("go")
    return str(done)


async def packs_two(order: str) -> str:
    done = await pack(["a", "b"])
    await receive("go")
    return str(done)


async def crunches(order: str) -> str:
    done = await crunch(1)
    await receive("go")
    return str(done)


async def crunches_two(order: str) -> str:
    done = await crunch(2)
    await receive("go")
    return str(done)


async def fails_for_a(order: str) -> str:
    try:
        return await fails("a")
    except ValueError:
        await receive("go")
        return "failed"


async def fails_for_b(order: str) -> str:
    try:
        return await fails("b")
    except ValueError:
        await receive("go")
        return "failed"


async def awaits(order: str) -> str:
    done = await ships("a")
    await receive("go")
    return done


async def awaits_another(order: str) -> str:
    done = await ships("b")
    await receive("go")
    return done


async def starts(order: str) -> str:
    child = await start(ships("a"))
    await receive("go")
    return await child.result()


async def starts_another(order: str) -> str:
    child = await start(ships("b"))
    await receive("go")
    return await child.result()


async def registers(order: str) -> str:
    await compensate(charge("a", -1))
    await receive("go")
    return "registered"


async def registers_another(order: str) -> str:
    await compensate(charge("b", -1))
    await receive("go")
    return "registered"


CHANGES: list[tuple[Body, Body, str, str]] = [
    (charges, charges_another, "step 'charge'", "charged 1 for a"),
    (charges, charges_with_a_note, "step 'charge'", "charged 1 for a"),
    (packs, packs_two, "step 'pack'", "2"),
    (crunches, crunches_two, "step 'crunch'", "2"),
    (fails_for_a, fails_for_b, "step 'fails'", "failed"),
    (awaits, awaits_another, "child 'ships'", "shipped a"),
    (starts, starts_another, "start 'ships'", "shipped a"),
    (registers, registers_another, "compensate 'charge'", "registered"),
]


@cache
def of(body: Body) -> Workflow[Any, Any]:
    """A workflow that does this; all of them have one name."""
    return workflow(name="changing")(body)


OTHERS = [ships, ships_later]


async def begin(source: StoreSource, body: Body, **options: Any) -> Any:
    async with Environment([of(body), *OTHERS], source, autojump_s=None, **options) as env:
        await env.engine.start(of(body)("o-17"), id="r")
        await env.quiet()
        return env.clock


async def replayed(env: Environment) -> Any:
    """The run's hold after its code was replayed."""
    await env.engine.handle("r").pause()
    await env.engine.handle("r").resume()
    await env.quiet()
    view = await env.engine.runs.get("r")
    assert view is not None
    return view.hold


async def finish(source: StoreSource, body: Body, clock: Any, **options: Any) -> Any:
    async with Environment([of(body), *OTHERS], source, clock=clock, autojump_s=None, **options) as env:
        await env.quiet()
        await env.engine.send(NamedEvent("go", None), to="r")
        result = await env.engine.handle("r").result()
        await env.check()
        return result


@pytest.mark.parametrize(
    ("old", "new", "what", "result"), CHANGES, ids=[f"{old.__name__}-{new.__name__}" for old, new, _, _ in CHANGES]
)
async def test_other_arguments_block_the_run_until_the_old_code_is_back(
    source: StoreSource, old: Body, new: Body, what: str, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = await begin(source, old)
    caplog.set_level(logging.WARNING, "perdure")
    async with Environment([of(new), *OTHERS], source, clock=clock, autojump_s=None) as env:
        hold = await replayed(env)
        assert hold is not None
        assert hold.kind == "blocked"
        assert f"at position 1 the code calls {what} with other arguments than the journal has it with" in hold.reason
        assert [line[0] for line in hold.details.splitlines()] == ["-", "+"]
        assert f"+ now: {what} at 1 with other arguments" in hold.details
        assert any("run r of" in line.getMessage() and what in line.getMessage() for line in caplog.records)
        await env.check()
    assert await finish(source, old, clock) == result


async def awaits_later(order: str) -> str:
    return await ships_later("a")


async def awaits_another_later(order: str) -> str:
    return await ships_later("b")


async def test_a_child_that_runs_with_other_arguments_is_not_taken_for_the_one_that_is_asked_for(
    source: StoreSource,
) -> None:
    clock = await begin(source, awaits_later)
    async with Environment([of(awaits_another_later), *OTHERS], source, clock=clock, autojump_s=None) as env:
        hold = await replayed(env)
        assert hold is not None
        assert "waits for child 'ships_later' with arguments " in hold.reason
        was, now = (line.split()[-1] for line in hold.details.splitlines())
        assert was != now
    async with Environment([of(awaits_later), *OTHERS], source, clock=clock, autojump_s=None) as env:
        await env.quiet()
        (child,) = (await env.engine.runs.list(parent="r")).runs
        await env.engine.send(NamedEvent("truck", 7), to=child.id)
        assert await env.engine.handle("r").result() == "shipped a 7"


@pytest.mark.parametrize("new", [charges, charges_by_name])
async def test_the_same_arguments_in_another_way_do_not_block(source: StoreSource, new: Body) -> None:
    clock = await begin(source, charges)
    async with Environment([of(new)], source, clock=clock, autojump_s=None) as env:
        assert await replayed(env) is None
    assert await finish(source, new, clock) == "charged 1 for a"


async def flaky_for_a(order: str) -> str:
    return await flaky("a")


async def flaky_for_b(order: str) -> str:
    return await flaky("b")


async def test_a_step_that_has_not_ended_is_called_with_what_the_code_of_now_gives_it(source: StoreSource) -> None:
    clock = await begin(source, flaky_for_a)
    async with Environment([of(flaky_for_b)], source, clock=clock) as env:
        assert await env.engine.handle("r").result() == "done for b"
        (entry,) = (await env.engine.session.store.journal("r"))[1]
        assert entry.digest == digest_of(flaky.signature, ("b",), {})


class Reversing:
    """Stands for a codec that hides what it stores."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def test_with_a_codec_no_digest_tells_what_it_hides(source: StoreSource) -> None:
    clock = await begin(source, charges, codec=Reversing())
    async with Environment([of(charges_another)], source, clock=clock, autojump_s=None, codec=Reversing()) as env:
        assert [entry.digest for entry in (await env.engine.session.store.journal("r"))[1]] == [""]
        assert await replayed(env) is None
    assert await finish(source, charges_another, clock, codec=Reversing()) == "charged 1 for a"


async def test_entries_from_before_there_were_digests_are_not_compared(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("perdure.models.functions.define.digest_of", lambda *_: "")
        clock = await begin(source, charges)
    assert await finish(source, charges_another, clock) == "charged 1 for a"


@step
async def decline(order: str) -> str:
    raise PermissionError(order)


async def charges_and_declines(order: str) -> str:
    await charge(order, 2)
    return await decline.options(retry=Retry.never())(order)


async def test_a_retry_sets_entries_aside_with_their_digests(source: StoreSource) -> None:
    async with Environment([of(charges_and_declines)], source) as env:
        run = await env.engine.start(of(charges_and_declines)("a"), id="r")
        with pytest.raises(Exception, match="a"):
            await run.result()
        _, before = await env.engine.session.store.journal("r")
        assert [entry.digest for entry in before] == [
            digest_of(charge.signature, ("a", 2), {}),
            digest_of(decline.signature, ("a",), {}),
        ]
        await env.engine.handle("r").retry()
        with pytest.raises(Exception, match="a"):
            await run.result()
        assert await env.engine.session.store.archived("r") == [(1, before[1])]
        assert [entry.digest for entry in (await env.engine.session.store.journal("r"))[1]] == [
            entry.digest for entry in before
        ]
        await env.check()


# Nothing that is the same blocks.


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Box(msgspec.Struct, frozen=True):
    colors: frozenset[Color]
    sizes: dict[str, float]


class Label(pydantic.BaseModel):
    words: set[str]


@step
async def send(thing: Any, *more: Any, **rest: Any) -> Any:
    return thing


@workflow
async def does_all(order: str) -> str:
    run = current_run()
    words = {"one", "two", "three", "four", "five"}
    got = await send(words, {"b": words, "a": 0.1 + 0.2}, more={1, "a", None})
    await send(got, run.id, at=run.now(), key=run.uuid4())
    await send(Box(frozenset(Color), dict.fromkeys(words, 1.5)), Label(words=words))
    await send([b"bytes", 2**70, -0.0], words, "x" * BYTES_MAX)
    await send("odd", float("nan"), 2**70)
    try:
        await fails(order)
    except ValueError as error:
        await send(str(error), type(error).__name__)
    await compensate(send(words))
    await ships(order)
    await sleep(HOUR)
    return "done"


async def test_a_crash_anywhere_finds_the_same_arguments(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> str:
        run = await env.engine.start(does_all("o-17"), id="r")
        return await run.result()

    report = await run_with_crashes(scenario, workflows=[does_all, ships], store=fresh)
    assert report.result == "done"


PROGRAM = """
import asyncio, sys
from tests.functions.test_changed_arguments import HOUR, Environment, does_all, ships

async def main(url, way):
    async with Environment([does_all, ships], url, autojump_s=None) as env:
        if way == "begin":
            await env.engine.start(does_all("o-17"), id="r")
        await env.quiet()
        if way == "end":
            await env.advance(HOUR)
        view = await env.engine.runs.get("r")
        print(view.status.value, view.hold, len((await env.engine.session.store.journal("r"))[1]))

asyncio.run(main(*sys.argv[1:]))
"""


def test_another_order_of_hashes_changes_nothing(tmp_path: Path) -> None:
    def run(way: str, seed: int) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/seeds.db", way],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert run("begin", 1) == ["suspended", "None", "9"]
    assert run("end", 2) == ["succeeded", "None", "10"]


def test_a_digest_is_over_what_a_call_gives() -> None:
    def of(*args: Any, **kwargs: Any) -> str:
        return digest_of(charge.signature, args, kwargs)

    assert of("a", 2) == of("a", amount=2) == of(amount=2, order="a")
    assert len({of("a"), of("b"), of("a", 1), of("a", 1.5), of("a", note="1"), of("a", 1, note="1")}) == 6
    assert of("a", note="x" * BYTES_MAX) == of("b", note="y" * BYTES_MAX) == LARGE
    assert of("\ud800") == ""
    assert digest_of(send.signature, ({1, "a"},), {}) != digest_of(send.signature, ({1, "b"},), {})
