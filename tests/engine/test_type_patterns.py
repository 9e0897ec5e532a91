"""Patterns in users' types are compared by Python's `re`, on the event loop: one that can take for ever is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from msgspec import Meta

from perdure import Engine, Event, receive, step, workflow
from perdure.cooperation import Key, Topic
from perdure.errors import InvalidArguments, InvalidDefinition
from perdure.values.json import Reader
from perdure.values.pattern_costs import EXPONENTIAL, cost_of

LINEAR = (
    r"^[a-z0-9]+(?:-[a-z0-9]+)*$", r"^\d{3}-\d{4}$", "^(red|rose|green)$", r"^[A-Z]{2}[0-9A-Z]{10,30}$",
    r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", "^[a-f0-9]{64}$", r"^(\w+\s)*\w+$",
    r"^[^@]+@[^@.]+\.[a-z]+$", "[a-z]+", "^a*", "abc", r"\d{3}", r"^(?=.*\d)(?=.*[a-z]).{8,}$", "^.{1,64}@.{1,100}$",
    "^.{1,64}@.{1,255}$", r"^https?://[^\s/]+(/[^\s]*)?$", "^[+]?[0-9]{1,4}[ -]?[0-9]{4,12}$", r"^\S+$", "^$", "",
    "^(?:ä|[à-ü])*x$", r"^[a-z]+\.[a-z]+\.[a-z]+$", "^[a-z][a-z0-9_]{0,62}$", r"^v\d+(\.\d+){0,2}$", "^(.*)$",
    "^[a-z]{2,10}[a-z0-9]{0,5}$", "[a-z]{2,10}[a-z0-9]{0,5}x", r"\A[a-z]+\Z", "(?i)^k+$", "^(?P<year>[0-9]+)-x$",
)  # fmt: skip
# The power of the text's length: `re` takes so long with the worst text.
POWERS = {
    r"^[^@]+@[^@]+\.[^@]+$": 2, "[a-z]+$": 2, r"\d+-x": 2, "^a*a*$": 2, "^a*a*a*$": 3, r"^\s*x?\s*$": 2, "(?i)k+K$": 2,
    r"(?ms)^.*x$": 2, "(?:a*b|a)*": 2, "^(.*a){20}$": 20, "(?:(?=.*b)a)*c": 2,
}  # fmt: skip
FOR_EVER = (
    "(a+)+$", "^(a+)+$", "^(a|a)*$", r"^([a-zA-Z0-9]+\s?)*$", "^(a|aa)+$", "^(a?){30}a{30}$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$", "^(a*)*$", "^(?:(?:.|.)x)+$", "^(?:a?)*?b$|^((a|b)*c?)*$", "a(?:(a+)+b)?",
    "^(?=(a+)+$)",
)  # fmt: skip


@pytest.mark.parametrize("pattern", LINEAR)
def test_usual_patterns_are_known_to_be_linear(pattern: str) -> None:
    re.compile(pattern)
    assert cost_of(pattern) == 1


@pytest.mark.parametrize(("pattern", "power"), POWERS.items())
def test_how_fast_the_time_grows_is_told_from_the_pattern(pattern: str, power: int) -> None:
    re.compile(pattern)
    assert cost_of(pattern) == power


@pytest.mark.parametrize("pattern", FOR_EVER)
def test_what_can_take_for_ever_is_found(pattern: str) -> None:
    re.compile(pattern)
    assert cost_of(pattern) >= EXPONENTIAL


def test_a_pattern_of_any_size_is_judged_soon() -> None:
    for pattern in (
        "^" + "[a-z]{0,1000}" * 50 + "$",
        "(a*b*c*)*" * 20,
        "^" + "(" * 60 + "a+" + ")+" * 60 + "$",
        "a|" * 500,
    ):
        assert cost_of(pattern) >= 1


Bad = Annotated[str, Meta(pattern="^(a+)+$")]
HOSTILE = "a" * 60 + "!"


class InStruct(msgspec.Struct):
    name: Bad


class InTree(msgspec.Struct):
    children: list[InTree]
    names: dict[str, tuple[int, Bad | None]]


@dataclass
class InDataclass:
    name: Bad


class InTypedDict(TypedDict):
    name: Bad


class InTuple(NamedTuple):
    name: Bad


class Named(Event, event_name="type-patterns-named"):
    name: Bad


@step
async def takes_step(name: Bad) -> None: ...


@workflow
async def takes_bad(name: Bad) -> None: ...


@workflow
async def gives_bad() -> Bad:
    return HOSTILE


@workflow
async def steps_bad() -> None:
    await takes_step(HOSTILE)


@workflow
async def hears_bad() -> None:
    await receive(Named)


@pytest.mark.parametrize(
    "wanted", [Bad, list[Bad], InStruct, InTree, InDataclass, InTypedDict, InTuple, InStruct | None]
)
def test_it_is_found_wherever_it_is_in_a_type(wanted: Any) -> None:
    with pytest.raises(InvalidDefinition, match=r"the input has the pattern '\^\(a\+\)\+\$': .* can take for ever"):
        Reader(wanted, "the input")


@pytest.mark.timeout(60)
async def test_a_hostile_text_does_not_get_to_a_pattern_that_takes_for_ever() -> None:
    """With the type let through, each of these would stand still for longer than anybody has lived."""
    async with Engine("memory://", workflows=[takes_bad, gives_bad, steps_bad, hears_bad]) as engine:
        with pytest.raises(InvalidDefinition, match="a parameter of workflow 'takes_bad' has the pattern"):
            await engine.start(takes_bad(HOSTILE))
        with pytest.raises(InvalidDefinition, match="event 'Named' has the pattern"):
            await engine.send(Named(name=HOSTILE))
    with pytest.raises(InvalidDefinition, match=r"a message on topic 'type-patterns' at .* has the pattern"):
        Topic("type-patterns", InStruct)
    with pytest.raises(InvalidDefinition, match="the context key 'type-patterns' has the pattern"):
        Key("type-patterns", InStruct)


class Customer(msgspec.Struct):
    mail: Annotated[str, Meta(pattern=r"^[^@]+@[^@]+\.[^@]+$", max_length=254)]
    slug: Annotated[str, Meta(pattern="^[a-z0-9]+(?:-[a-z0-9]+)*$")]


@workflow
async def greets(customer: Customer) -> str:
    return customer.mail


@pytest.mark.timeout(60)
async def test_a_bound_on_the_length_makes_up_for_a_power() -> None:
    with pytest.raises(InvalidDefinition, match=r"to the power of 2; begin it .* max_length of at most 300"):
        Reader(Annotated[str, Meta(pattern=r"^[^@]+@[^@]+\.[^@]+$")], "the input")
    with pytest.raises(InvalidDefinition, match="max_length of at most 300"):
        Reader(Annotated[str, Meta(pattern=r"^[^@]+@[^@]+\.[^@]+$", max_length=301)], "the input")
    async with Engine("memory://", workflows=[greets]) as engine:
        assert await engine.run(greets(Customer("ann@example.com", "a-b"))) == "ann@example.com"
        for hostile in (Customer("a@" + "." * 100_000, "a"), Customer("a@b.c", "a-" * 500_000)):
            with pytest.raises(InvalidArguments):
                await engine.start(greets(hostile))
