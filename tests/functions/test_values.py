"""Arguments, results and step values come back typed, from the bytes that are stored; what has no form says so."""

from __future__ import annotations

import asyncio
import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from perdure import Limits, sleep, step, workflow
from perdure.errors import InvalidArguments, RunFailed, UnstorableValue
from perdure.models.functions.define import Step, Workflow
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.values.json import PAYLOAD_MAX_BYTES


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


class Address(TypedDict):
    street: str


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


class Order(msgspec.Struct):
    id: uuid.UUID
    lines: list[Line]
    placed: datetime
    colour: Colour | None = None


@attrs.define
class Customer:
    name: str
    orders: list[Order] = attrs.field(factory=list)


class Card(pydantic.BaseModel):
    number: str
    expires: date
    limit: Decimal | None = None


class Wallet(pydantic.BaseModel):
    cards: list[Card]


UserId = NewType("UserId", int)
ORDER = Order(
    uuid.UUID(int=7), [Line("s-1", Decimal("1.10"), {"a", "b"})], datetime(2030, 1, 2, 3, 4, 5, 6, UTC), Colour.RED
)
CARD = Card(number="4711", expires=date(2031, 1, 31), limit=Decimal("9.99"))
VALUES: list[tuple[Any, Any]] = [
    (int, 2**200),
    (int, -(2**63)),
    (float, 0.1),
    (str, "snow ☃ and \0 and \n"),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (datetime, datetime(2030, 1, 1, 12, 0, 0, 1, UTC)),
    (datetime, datetime(2030, 1, 1, 12)),  # noqa: DTZ001 - without a zone on purpose
    (date, date(2030, 2, 28)),
    (timedelta, timedelta(days=1, microseconds=3)),
    (Decimal, Decimal("1.000")),
    (uuid.UUID, uuid.UUID(int=5)),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Rights, Rights.READ | Rights.WRITE),
    (Literal["a", "b"], "b"),
    (UserId, 5),
    (Point, Point(1, 2)),
    (Address, {"street": "Main"}),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"x"})),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (dict[int, list[Decimal]], {1: [Decimal("0.5")]}),
    (dict[Colour, int], {Colour.RED: 1}),
    (int | str, "x"),
    (Line | None, None),
    (list[Line], [Line("s", Decimal(1))]),
    (Line, Line("s", Decimal("1.0"), {"t"})),
    (Order, ORDER),
    (Customer, Customer("ada", [ORDER])),
    (Card, CARD),
    (Card | None, CARD),
    (Wallet, Wallet(cards=[CARD])),
    (dict[str, Card], {"main": CARD}),
    (object, {"a": [1, None]}),
    (Any, [1, "a", None, {"b": 1.5}]),
]


def echoing(kind: Any) -> tuple[Workflow[Any, Any], list[Any]]:
    """A workflow that hands a value of this type in and out of a step; and what it and the step were given."""
    seen: list[Any] = []

    async def work(value: Any) -> Any:
        seen.append(value)
        return value

    work.__annotations__ = {"value": kind, "return": kind}
    echo: Step[Any, Any] = step(work)

    async def flow(value: Any) -> Any:
        seen.append(value)
        back = await echo(value)
        seen.append(back)
        return back

    flow.__annotations__ = {"value": kind, "return": kind}
    return workflow(flow), seen


@pytest.mark.parametrize(("kind", "value"), VALUES)
async def test_a_value_comes_back_typed_wherever_it_goes(kind: Any, value: Any) -> None:
    flow, seen = echoing(kind)
    async with Environment([flow]) as env:
        run = await env.engine.start(flow(value))
        result = await run.result()
        assert [result, *seen] == [value] * 4
        assert {type(one) for one in [result, *seen]} == {type(value)}
        assert await env.engine.handle(run.id).result() == value
        await env.restart()
        assert await env.engine.handle(run.id).result() == value


async def test_a_replay_sees_what_the_first_run_saw(source: StoreSource) -> None:
    seen: list[Any] = []

    @step
    async def load(customer: Customer) -> Customer:
        return customer

    @workflow
    async def flow(customer: Customer) -> None:
        seen.append((customer, await load(customer)))
        await sleep(60)

    async with Environment([flow], source, autojump_s=None) as env:
        run = await env.engine.start(flow(Customer("ada", [ORDER])))
        await env.quiet()
        await env.restart()
        await env.advance(60)
        await env.engine.handle(run.id).result()
        assert seen[0] == seen[1] == (Customer("ada", [ORDER]), Customer("ada", [ORDER]))


async def test_without_annotations_values_come_back_as_json_has_them() -> None:
    given: list[Any] = []

    @step
    async def untyped(value):  # type: ignore[no-untyped-def]
        given.append(value)
        return value

    @workflow
    async def flow(value):  # type: ignore[no-untyped-def]
        return await untyped(value)

    async with Environment([flow]) as env:
        result = await env.engine.run(flow({"at": date(2030, 1, 1), "pair": (1, 2), "nothing": None}))
        assert result == given[0] == {"at": "2030-01-01", "pair": [1, 2], "nothing": None}


async def test_all_kinds_of_parameters_arrive() -> None:
    @workflow
    async def flow(a: int, /, b: int = 2, *rest: Decimal, c: str, d: str = "d", **more: date) -> list[Any]:
        return [a, b, [str(one) for one in rest], c, d, {key: value.year for key, value in more.items()}]

    async with Environment([flow]) as env:
        run = env.engine.run
        assert await run(flow(1, c="c")) == [1, 2, [], "c", "d", {}]
        assert await run(flow(1, 5, Decimal(7), Decimal(8), c="x", e=date(2030, 1, 1))) == [
            1, 5, ["7", "8"], "x", "d", {"e": 2030},
        ]  # fmt: skip
        assert await run(flow(1, d="y", c="x")) == [1, 2, [], "x", "y", {}]


# What cannot be stored.


class Socket: ...


@dataclass
class Deep:
    rows: list[dict[str, Any]]


class Measured(pydantic.BaseModel):
    value: float | None


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


UNSTORABLE: list[tuple[Callable[[], Any], str, str]] = [
    (Socket, "Socket", "at $"),
    (lambda: Deep([{"a": 1}, {"b": Socket()}]), "Socket", "at $.rows[1]['b']"),
    (lambda: [1.0, math.nan], "nan", "at $[1]"),
    (lambda: {"x": (None, -math.inf)}, "-inf", "at $['x'][1]"),
    (lambda: Measured(value=math.nan), "nan", "at $.value"),
    (lambda: {"n": 10**400}, "integer", "at $['n']"),
    (lambda: ["ok", "\ud800"], "lone surrogate", "at $[1]"),
    (lambda: {"\udfff": 1}, r"key '\udfff'", "at $"),
    (lambda: {"a": {(1, 2): 3}}, "key (1, 2)", "at $['a']"),
    (endless, "contains itself", "at $[0]"),
    ({1: "a"}.keys, "dict_keys", "at $"),
    (lambda: (one for one in "ab"), "generator", "at $"),
    (lambda: "x" * PAYLOAD_MAX_BYTES, "more than the limit", "payload_bytes_max"),
]


@pytest.mark.parametrize(("make", "what", "where"), UNSTORABLE)
async def test_a_step_whose_result_cannot_be_stored_fails_and_says_why(
    make: Callable[[], Any], what: str, where: str
) -> None:
    calls: list[int] = []

    @step
    async def produce() -> Any:
        calls.append(1)
        return make()

    @workflow
    async def flow() -> str:
        try:
            await produce()
        except UnstorableValue as error:
            return str(error)
        return "stored"

    async with Environment([flow]) as env:
        said = await env.engine.run(flow())
        assert "the result of step" in said
        assert what in said
        assert where in said
        assert len(calls) == 1  # Trying again would not help.


@pytest.mark.parametrize(("make", "what", "where"), UNSTORABLE)
async def test_neither_arguments_nor_a_workflows_result_can_be_what_cannot_be_stored(
    make: Callable[[], Any], what: str, where: str
) -> None:
    @workflow
    async def take(value: Any) -> None: ...

    @workflow
    async def give() -> Any:
        return make()

    async with Environment([take, give]) as env:
        with pytest.raises(UnstorableValue) as caught:
            await env.engine.start(take(make()))
        assert what in str(caught.value)
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(give())
        assert what in str(failed.value)
        assert isinstance(failed.value.__cause__, UnstorableValue)
        assert (await env.engine.runs.list()).runs[0].status == "failed"


async def test_an_argument_that_cannot_be_stored_fails_before_the_step_runs() -> None:
    @step
    async def take(value: Any) -> None:
        raise AssertionError("never")

    @workflow
    async def flow() -> str:
        with pytest.raises(UnstorableValue, match=r"Socket at \$\['value'\] has no JSON form"):
            await take(Socket())
        return "went on"

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == "went on"


async def test_a_result_that_does_not_fit_its_annotation_fails_the_step() -> None:
    @step
    async def count() -> int:
        return "five"  # type: ignore[return-value]

    @workflow
    async def flow() -> int:
        return await count()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match="does not fit its annotation int: Expected `int`, got `str`"):
            await env.engine.run(flow())


@pytest.mark.parametrize("wrong", [{"sku": "s"}, "s-1", Line("s", "five"), None])  # type: ignore[arg-type]
async def test_arguments_of_the_wrong_type_are_refused_at_the_start(wrong: Any) -> None:
    @workflow
    async def flow(line: Line) -> None: ...

    async with Environment([flow]) as env:
        with pytest.raises(InvalidArguments, match=r"the input of workflow .*line"):
            await env.engine.start(flow(wrong))
        assert (await env.engine.runs.list()).runs == []


# Nothing leaks through mutable values.


async def test_what_a_step_does_to_its_arguments_does_not_reach_the_workflow() -> None:
    @step
    async def greedy(items: list[str], seen: dict[str, Any]) -> list[str]:
        items.append("mine")
        seen["done"] = True
        return items

    @workflow
    async def flow(items: list[str]) -> list[list[str]]:
        seen: dict[str, Any] = {}
        first = await greedy(items, seen)
        first.append("changed by the workflow")
        second = await greedy(items, seen)
        return [items, first, second, list(seen)]

    async with Environment([flow]) as env:
        mine = ["a"]
        assert await env.engine.run(flow(mine)) == [
            ["a"], ["a", "mine", "changed by the workflow"], ["a", "mine"], [],
        ]  # fmt: skip
        assert mine == ["a"]


async def test_what_the_workflow_does_to_an_argument_while_the_step_runs_does_not_reach_it() -> None:
    @step
    async def keep(items: list[int]) -> list[int]:
        return items

    @workflow
    async def flow() -> list[int]:
        items = [1]
        task = asyncio.create_task(keep(items))
        await asyncio.sleep(0)
        items.append(2)
        return await task

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == [1]


async def test_the_limit_on_payloads_is_the_engines(source: StoreSource) -> None:
    @workflow
    async def flow(text: str) -> str:
        return text

    async with Environment([flow], source, limits=Limits(payload_bytes_max=1_000)) as env:
        assert len(await env.engine.run(flow("x" * 900))) == 900
        with pytest.raises(UnstorableValue, match=r"1,0\d\d bytes as JSON, more than the limit of 1,000"):
            await env.engine.start(flow("x" * 1_000))
