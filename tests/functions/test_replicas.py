"""Everyday exceptions of steps: a workflow catches them as what they are, the first time as in every replay."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import msgspec
import pydantic
import pytest

from perdure import Retry, sleep, step, workflow
from perdure.errors import ChildFailed, MaxRetriesExceeded, RunFailed, StepFailed
from perdure.graph import Graph, assign
from perdure.kernel.failures import Attempt, Failure
from perdure.testing import Environment
from perdure.values import failures
from perdure.values.failures import rebuild, to_failure
from tests.functions.process_steps import open_missing
from tests.functions.test_step_errors import raised_by


class Order(pydantic.BaseModel):
    amount: int


class Counted(Exception):
    """Its constructor has a side effect, and wants what nobody knows."""

    made = 0

    def __init__(self, connection: object, *, code: int) -> None:
        super().__init__(f"code {code}")
        type(self).made += 1
        self.connection = connection
        self.code = code

    def __init_subclass__(cls) -> None:
        raise AssertionError("this is no subclass that somebody wrote")


class Made(Exception):
    def __new__(cls, *args: object) -> Made:
        cls.made += 1
        return super().__new__(cls, *args)

    made = 0


class Slotted(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Grouped(ExceptionGroup[Exception]): ...


class Outer:
    class Inner(Exception): ...


class Quitting(BaseException): ...


def caught(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def status_error() -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://shop.example/o-1")
    return caught(httpx.Response(404, request=request).raise_for_status)  # type: ignore[return-value]


async def test_a_missing_file_is_caught_as_such_live_and_in_a_replay(tmp_path: Path) -> None:
    seen: list[Any] = []

    @step(retry=Retry.never())
    def read(path: str) -> str:
        return Path(path).read_text()

    @workflow
    async def flow(path: str) -> str:
        try:
            await read(path)
        except FileNotFoundError as error:
            seen.append(error)
        await sleep(1)
        return "went on"

    async with Environment([flow], autojump_s=None) as env:
        await env.engine.start(flow(str(tmp_path / "gone")), id="r-1")
        await env.quiet()
        await env.restart()
        await env.advance(1)
        assert await env.engine.handle("r-1").result() == "went on"
    assert len(seen) == 2
    for error in seen:
        assert type(error) is FileNotFoundError
        assert (error.errno, error.strerror, error.filename) == (2, "No such file or directory", str(tmp_path / "gone"))
        assert str(error) == f"[Errno 2] No such file or directory: '{tmp_path / 'gone'}'"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "gone", "a.txt"),
        PermissionError(13, "no", "a.txt", None, "b.txt"),
        OSError("just a text"),
        ConnectionResetError(104, "reset by peer"),
        caught(b"\xff\xfe".decode),
        caught("\ud800".encode),
        caught(json.loads, "{"),
        caught(int, "x"),
        caught(exec, "import no_such_module"),
        caught(compile, "a b", "code.py", "exec"),
        KeyError(("a", 1)),
        ValueError(b"bytes", "\ud800"),
        subprocess.CalledProcessError(2, ["ls"], b"out"),
        TimeoutError(),
        Slotted(7),
        Frozen(7),
        Outer.Inner("nested"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_can_be_stored_whole_comes_back_as_its_very_class(error: Exception) -> None:
    back = await raised_by(error)
    assert type(back) is type(error)
    assert str(back).encode(errors="backslashreplace") == str(error).encode(errors="backslashreplace")
    assert back.args == error.args
    assert {name: value for name, value in vars(back).items() if not name.startswith("_perdure")} == vars(error)
    for name in ("errno", "filename", "filename2", "object", "start", "lineno", "name", "code", "msg"):
        assert getattr(back, name, None) == getattr(error, name, None), name


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_number_that_json_does_not_know_is_the_same_live_and_in_a_replay(number: str) -> None:
    seen: list[ValueError] = []

    @step(retry=Retry.never())
    async def measure() -> None:
        error = ValueError(float(number), [float(number)])
        error.measured = float(number)  # type: ignore[attr-defined]
        raise error

    @workflow
    async def flow() -> None:
        try:
            await measure()
        except ValueError as error:
            seen.append(error)
        await sleep(1)

    async with Environment([flow], autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        await env.restart()
        await env.advance(1)
    assert [type(error) for error in seen] == [ValueError, ValueError]
    expected = (f"({number}, [{number}])", number)
    assert [(repr(error.args), str(vars(error)["measured"])) for error in seen] == [expected] * 2


async def test_what_cannot_be_stored_whole_still_is_of_its_class_and_says_what_it_said() -> None:
    back: Any = None
    for error in (status_error(), HTTPError("http://shop.example", 404, "Not Found", Message(), io.BytesIO())):
        back = await raised_by(error)
        assert isinstance(back, type(error))
        assert isinstance(back, StepFailed)
        assert str(back) == str(error)
        assert type(back).__name__ == type(error).__name__
        assert back.failure is not None
        assert (back.failure.type, back.failure.message) == (failures.type_name(type(error)), str(error))
        with pytest.raises(AttributeError, match="JSON form"):
            _ = back.response
    assert (vars(back)["code"], vars(back)["url"]) == (404, "http://shop.example")


async def test_an_invalid_model_is_caught_as_pydantics_error() -> None:
    for given in ({"amount": "x"}, {"amount": object()}):
        error = caught(Order.model_validate, given)
        back = await raised_by(error)
        assert isinstance(back, pydantic.ValidationError)
        assert str(back) == str(error)
        assert back.errors()[0]["loc"] == ("amount",)
        assert back.title == "Order"


async def test_no_code_of_the_class_is_called() -> None:
    error, made = Counted(object(), code=7), Made("x")
    Counted.made = Made.made = 0
    back = await raised_by(error)
    assert isinstance(back, Counted)
    assert isinstance(back, StepFailed)
    assert (back.code, str(back)) == (7, "code 7")
    assert type(await raised_by(made)) is Made
    assert (Counted.made, Made.made) == (0, 0)


async def test_a_group_keeps_its_members() -> None:
    @step(retry=Retry.never())
    async def fail() -> None:
        inner = ValueError("b")
        inner.__cause__ = OSError(13, "no", "f")
        raise Grouped("three", [KeyError("a"), ExceptionGroup("inner", [inner, status_error()])])

    found: list[Any] = []

    @workflow
    async def flow() -> str:
        try:
            await fail()
        except* KeyError as group:
            found.append(("key", group.exceptions[0].args))
        except* ValueError as group:
            found.append(("value", str(group.exceptions[0].exceptions[0].__cause__)))  # type: ignore[union-attr]
        except* httpx.HTTPStatusError:
            found.append(("status",))
        await sleep(1)
        return "handled"

    async with Environment([flow], autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        await env.restart()
        await env.advance(1)
        assert await env.engine.handle("r-1").result() == "handled"
    assert found == [("key", ("a",)), ("value", "[Errno 13] no: 'f'"), ("status",)] * 2
    assert type(await raised_by(Grouped("g", [ValueError("x")]))) is Grouped


async def test_a_whole_chain_of_causes_comes_back() -> None:
    error = ValueError("a")
    error.__cause__ = status_error()
    error.__cause__.__cause__ = FileNotFoundError(2, "gone", "f")
    back = await raised_by(error)
    assert isinstance(back.__cause__, httpx.HTTPStatusError)
    assert str(back.__cause__.__cause__) == "[Errno 2] gone: 'f'"


async def test_the_cause_is_behind_the_attempts() -> None:
    @step(retry=Retry(attempts=2, initial=0))
    async def fail() -> None:
        raise status_error() from FileNotFoundError(2, "gone", "f")

    caught_one: list[Any] = []

    @workflow
    async def flow() -> None:
        try:
            await fail()
        except httpx.HTTPStatusError as error:
            caught_one.append(error)

    async with Environment([flow]) as env:
        await env.engine.run(flow())
    (error,) = caught_one
    exhausted = error.__cause__
    assert isinstance(exhausted, MaxRetriesExceeded)
    assert [attempt.attempt for attempt in exhausted.history] == [1, 2]
    assert isinstance(exhausted.__cause__, FileNotFoundError)


async def test_the_history_of_attempts_has_one_form_however_far_it_travels() -> None:
    @step(retry=Retry(attempts=2, initial=0))
    async def fail() -> None:
        class Local(Exception): ...

        raise Local("here")

    @workflow
    async def child() -> None:
        await fail()

    seen: list[Any] = []

    @workflow
    async def flow() -> None:
        try:
            await child()
        except ChildFailed as error:
            seen.append(error.__cause__)
        await sleep(1)
        raise seen[-1]

    async with Environment([flow, child], autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        await env.restart()
        await env.advance(1)
        with pytest.raises(RunFailed) as failed:
            await env.engine.handle("r-1").result()
    for error in (*seen, failed.value.__cause__):
        assert isinstance(error, MaxRetriesExceeded)
        assert [type(attempt) for attempt in error.history] == [Attempt, Attempt]
        assert isinstance(error.failure, Failure)
        assert error.failure.message == "here"


async def test_an_error_that_nobody_catches_fails_the_run_as_what_it_was() -> None:
    @step(retry=Retry.never())
    async def fail() -> None:
        raise status_error()

    @workflow
    async def child() -> None:
        await fail()

    @workflow
    async def flow() -> None:
        await child()

    async with Environment([flow, child]) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(flow(), id="r-1")
        cause = failed.value.__cause__
        assert isinstance(cause, ChildFailed)
        assert isinstance(cause.__cause__, httpx.HTTPStatusError)
        assert str(cause.__cause__) == str(status_error())
        (entry,) = (await env.engine.handle("r-1").history()).journal
        assert entry.failure is not None
        assert entry.failure.cause is not None
        assert entry.failure.cause.type == "httpx:HTTPStatusError"


async def test_a_step_in_a_worker_process_fails_with_what_it_raised() -> None:
    seen: list[Any] = []

    @workflow
    async def flow() -> None:
        for path in ("file", "group"):
            try:
                await open_missing(path)
            except* FileNotFoundError as group:
                found = group.exceptions[0]
                seen.append((type(found), found.errno, found.filename))  # type: ignore[union-attr]

    async with Environment([flow]) as env:
        await env.engine.run(flow())
    assert seen == [(FileNotFoundError, 2, "no-such-file")] * 2


def test_a_row_imports_nothing_and_makes_nothing_but_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this" not in sys.modules
    module = types.ModuleType("lazy_module")

    def give(name: str) -> type:
        raise AssertionError("a module's __getattr__ was asked")

    module.__getattr__ = give  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    for name in (
        "this:Anything", "lazy_module:Error", "builtins:SystemExit", "builtins:KeyboardInterrupt", "builtins:int",
        "asyncio.exceptions:CancelledError", "builtins:StopIteration", f"{__name__}:Quitting", "os:system", "os:error",
        "builtins:BaseExceptionGroup", "subprocess:Popen", "nonsense", "", ":", "builtins:", "builtins:ValueError.args",
        f"{__name__}:ValueError", f"{__name__}:Outer.__init__.__globals__",
    ):  # fmt: skip
        error = rebuild(Failure(type=name, message="m", args=["m"]), run_id="r-1")
        assert type(error) is StepFailed, name
        assert str(error) == f"{name}: m"
    assert "this" not in sys.modules


def test_a_class_of_the_main_module_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Exception): ...

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    assert type(rebuild(to_failure(Own("x")), run_id="r-1")) is Own


def test_failures_that_an_earlier_version_stored_are_still_read() -> None:
    stored = '{"type":"builtins:FileNotFoundError","message":"[Errno 2] gone: \'f\'","args":[2,"gone"]}'
    error = rebuild(msgspec.json.decode(stored, type=Failure), run_id="r-1")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, StepFailed)
    assert (error.errno, str(error)) == (2, "[Errno 2] gone: 'f'")
    stored = '{"type":"builtins:ValueError","message":"x","args":["x"],"state":{"code":1}}'
    error = rebuild(msgspec.json.decode(stored, type=Failure), run_id="r-1")
    assert (type(error), str(error), vars(error)) == (ValueError, "x", {"code": 1})


def test_what_is_stored_of_a_failure_is_bounded() -> None:
    huge = "x" * 10_000_000
    error = ValueError(huge)
    error.text = huge  # type: ignore[attr-defined]
    error.code = 7  # type: ignore[attr-defined]
    error.__cause__ = KeyError(huge)
    group = ExceptionGroup(huge, [ExceptionGroup("g", [ValueError("y" * 100_000)] * 5_000), error])
    for one in (error, group, caught(huge.encode().__add__(b"\xff").decode)):
        failure = to_failure(one)
        assert len(msgspec.json.encode(failure)) < 3 * failures.FAILURE_MAX_CHARS
        assert len(failure.message) <= failures.MESSAGE_MAX_CHARS + 50
        back = rebuild(failure, run_id="r-1")
        assert isinstance(back, type(one))
    assert rebuild(to_failure(error), run_id="r-1").code == 7  # type: ignore[attr-defined]
    whole = "z" * failures.MESSAGE_MAX_CHARS
    assert str(rebuild(to_failure(ValueError(whole)), run_id="r-1")) == whole


async def test_a_graphs_node_fails_with_what_its_step_raised() -> None:
    @step(retry=Retry.never())
    async def fetch() -> None:
        raise status_error()

    def graph(name: str) -> Graph[Any, Any]:
        made: Graph[Any, Any] = Graph(name)
        made.node("fetch", fetch)
        return made

    failing, rescued = graph("replicas.failing"), graph("replicas.rescued")
    rescued.node("rescue", assign({"state.seen": "error.type + ': ' + error.message"}))
    rescued.edge("fetch", "rescue", on_error=True)
    rescued.output({"seen": "state.seen"})
    async with Environment([failing, rescued]) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(failing(None))
        assert isinstance(failed.value.__cause__, httpx.HTTPStatusError)
        assert await env.engine.run(rescued(None)) == {"seen": f"HTTPStatusError: {status_error()}"}
