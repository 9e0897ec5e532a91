"""What a workflow sees of an error in a step, the first time as in every replay."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from perdure import Retry, sleep, step, workflow
from perdure.errors import RunFailed, StepFailed
from perdure.testing import Environment


class Declined(Exception):
    """As people write them: the arguments are not those of the base class."""

    def __init__(self, card: str, cents: int, response: object = None) -> None:
        super().__init__(f"card {card} was declined for {cents}")
        self.card = card
        self.cents = cents
        self.response = response


class Picky(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


async def raised_by(error: BaseException, sync: bool = False) -> Any:
    """What a workflow sees when a step raises this; live and in a replay."""
    seen: list[Any] = []

    async def work() -> None:
        raise error

    def work_in_thread() -> None:
        raise error

    failing: Any = step(retry=Retry.never())(work_in_thread if sync else work)

    @workflow
    async def flow() -> None:
        try:
            await failing()
        except BaseException as caught:  # noqa: BLE001 - whatever it is
            seen.append(caught)
        await sleep(1)

    async with Environment([flow], autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        await env.restart()
        await env.advance(1)
        await env.engine.handle("r-1").result()
        first, again = seen
        assert (type(first), repr(first.args), str(first)) == (type(again), repr(again.args), str(again))
        return first


async def test_an_error_comes_back_as_its_own_class_with_its_attributes() -> None:
    error = await raised_by(Declined("c-9", 100))
    assert isinstance(error, Declined)
    assert (error.card, error.cents, error.response) == ("c-9", 100, None)
    assert str(error) == "card c-9 was declined for 100"
    assert type(await raised_by(Picky(reason="keyword only"))) is Picky


@pytest.mark.parametrize("error", [KeyError("k"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), OSError(2, "gone")])
async def test_pythons_own_errors_come_back(error: Exception) -> None:
    back = await raised_by(error)
    assert str(error) in str(back)


async def test_what_cannot_be_rebuilt_is_a_step_failure_that_says_what_it_was() -> None:
    class Local(Exception): ...

    error = await raised_by(Local("here"))
    assert type(error) is StepFailed
    assert "Local: here" in str(error)
    assert error.failure is not None
    for original in (Declined(object(), 1), Declined("c", 1, object())):  # type: ignore[arg-type]
        error = await raised_by(original)
        assert isinstance(error, Declined)
        assert isinstance(error, StepFailed)
        assert (str(error), error.cents) == (str(original), 1)
        assert error.failure is not None


@pytest.mark.parametrize("message", ["\ud800 lone", "nul \0", "x" * 100_000])
async def test_any_message_can_be_stored(message: str) -> None:
    assert "lone" in message or (await raised_by(ValueError(message))).args
    await raised_by(ValueError(message))


async def test_an_error_that_cannot_even_be_shown_does_not_hang_the_run() -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "whose str() failed" in str(await raised_by(Shy()))


@pytest.mark.parametrize("sync", [False, True])
async def test_stop_iteration_does_not_hang_the_run(sync: bool) -> None:
    error = await raised_by(StopIteration(5), sync)
    assert "StopIteration" in str(error)


@pytest.mark.parametrize("sync", [False, True])
async def test_a_step_that_cancels_itself_fails(sync: bool) -> None:
    error = await raised_by(asyncio.CancelledError(), sync)
    assert type(error) is StepFailed
    assert "cancelled from inside" in str(error)


async def test_a_group_of_errors_fails_the_step_and_tells_of_each() -> None:
    error = await raised_by(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    assert type(error) is ExceptionGroup
    assert [repr(one) for one in error.exceptions] == ["ValueError('a')", "KeyError('b')"]


async def test_the_cause_of_an_error_comes_with_it() -> None:
    error = ValueError("outer")
    error.__cause__ = OSError("inner")
    back = await raised_by(error)
    assert isinstance(back.__cause__, OSError)
    assert str(back.__cause__) == "inner"


async def test_a_step_that_never_returns_may_say_so() -> None:
    @step
    async def refuse() -> NoReturn:
        raise ValueError("no")

    @workflow
    async def flow() -> str:
        with pytest.raises(ValueError, match="no"):
            await refuse()
        return "went on"

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == "went on"


@pytest.mark.parametrize("how", ["at once", "after a while", "in a thread"])
async def test_the_stack_begins_with_the_steps_own_code(how: str) -> None:
    async def at_once() -> NoReturn:
        raise ValueError("here")

    async def after_a_while() -> NoReturn:
        await asyncio.sleep(0)
        raise ValueError("here")

    def in_a_thread() -> NoReturn:
        raise ValueError("here")

    work = {"at once": at_once, "after a while": after_a_while, "in a thread": in_a_thread}[how]
    failing: Any = step(retry=Retry.never())(work)

    @workflow
    async def flow() -> None:
        await failing()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(flow(), id="r-1")
        (entry,) = (await env.engine.handle("r-1").history()).journal
    assert entry.failure is not None
    places = [line for line in entry.failure.stack.splitlines() if line.lstrip().startswith("File ")]
    own = f", in {work.__name__}"
    assert own in places[-1]
    if how != "in a thread":
        assert len(places) == 1, places
