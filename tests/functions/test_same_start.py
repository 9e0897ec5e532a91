"""A start with an id that was used before: the same values are the same run, however they are written."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from perdure import Workflow, continue_as, receive, start, workflow
from perdure.errors import RunExists
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.functions.identity import check_same, identity
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.values.canonical import canonical

Open = Callable[..., Environment]


@dataclass(frozen=True)
class Part:
    name: str
    sizes: frozenset[str] = frozenset()


class Model(pydantic.BaseModel):
    names: set[str]
    weight: float = 0


@workflow(name="same.takes")
async def takes(
    names: set[str], kilos: float = 0, parts: set[Part] | None = None, model: Model | None = None, other: Any = None
) -> None:
    await receive("never")


@workflow(name="same.continues")
async def continues(names: set[str], rounds: int) -> None:
    if rounds:
        await continue_as(continues(names, rounds - 1))
    await receive("never")


@workflow(name="same.laps")
async def laps(left: int, style: str = "plain") -> None:
    if left:
        await continue_as(laps(left - 1, style))
    await receive("never")


@workflow(name="same.at")
async def at(when: datetime, others: list[datetime]) -> None:
    await receive("never")


@workflow(name="same.parent")
async def parent(names: list[str], kilos: float) -> str:
    try:
        child = await start(takes(set(names), kilos), id="child", detached=True)
    except RunExists as error:
        return str(error)
    return child.id


@pytest.fixture
def opened(source: StoreSource) -> Open:
    workflows: list[Workflow[Any, Any]] = [takes, continues, laps, at, parent]
    return lambda **options: Environment(workflows, source, **{"autojump_s": None, **options})


async def test_a_set_is_the_same_in_whatever_order_it_is_written(opened: Open) -> None:
    async with opened() as env:
        for names in (["a", "b", "c"], ["c", "a", "b"]):
            assert (await env.engine.start("same.takes", {"names": names}, id="r")).id == "r"
        await env.engine.start(takes({"a", "b", "c"}), id="r")
        for other in (["a", "b"], ["a", "b", "d"]):
            with pytest.raises(RunExists):
                await env.engine.start("same.takes", {"names": other}, id="r")


async def test_a_number_is_the_same_however_it_is_written(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(takes(set(), 1), id="r")
        await env.engine.start(takes(set(), 1.0), id="r")
        await env.engine.start("same.takes", {"kilos": 1, "names": []}, id="r")
        with pytest.raises(RunExists):
            await env.engine.start(takes(set(), 1.5), id="r")


async def test_a_default_is_the_same_given_or_left_out(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(takes({"a"}), id="left out")
        await env.engine.start(takes({"a"}, 0), id="left out")
        await env.engine.start(
            "same.takes", {"names": ["a"], "kilos": 0.0, "parts": None, "other": None}, id="left out"
        )
        await env.engine.start(takes({"a"}, kilos=0, model=None), id="given")
        await env.engine.start("same.takes", {"names": ["a"]}, id="given")
        with pytest.raises(RunExists):
            await env.engine.start(takes({"a"}, 1), id="left out")
        with pytest.raises(RunExists):
            await env.engine.start(takes({"a"}), id=(await env.engine.start(takes({"a"}, 1), id="other")).id)


async def test_a_default_is_the_same_for_a_run_that_continued(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(laps(2), id="r")
        await env.quiet()
        await env.engine.start(laps(2, "plain"), id="r")
        with pytest.raises(RunExists):
            await env.engine.start(laps(2, "fancy"), id="r")


async def test_an_instant_is_the_same_in_every_zone(opened: Open) -> None:
    there = timezone(timedelta(hours=5, minutes=30))
    async with opened() as env:
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        await env.engine.start(at(noon, [noon]), id="r")
        await env.engine.start(at(noon.astimezone(there), [noon.astimezone(there)]), id="r")
        await env.engine.start(
            "same.at", {"when": "2026-01-01T17:30:00+05:30", "others": ["2026-01-01T12:00:00Z"]}, id="r"
        )
        for other in (noon.replace(tzinfo=there), noon.replace(tzinfo=None), noon + timedelta(microseconds=1)):
            with pytest.raises(RunExists):
                await env.engine.start(at(other, [noon]), id="r")


async def test_a_run_that_continued_knows_what_it_was_started_as(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start("same.continues", {"names": ["a", "b", "c"], "rounds": 2}, id="r")
        await env.quiet()
        for names in (["b", "c", "a"], ["c", "b", "a"]):
            await env.engine.start("same.continues", {"names": names, "rounds": 2}, id="r")
        with pytest.raises(RunExists):
            await env.engine.start("same.continues", {"names": ["a", "b", "c"], "rounds": 0}, id="r")


async def test_children_too(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start("same.takes", {"names": ["b", "a"], "kilos": 1}, id="child")
        assert await env.engine.run(parent(["a", "b"], 1.0)) == "child"
        assert "belongs to a run" in await env.engine.run(parent(["a", "c"], 1.0))


def test_the_hash_seed_of_a_process_does_not_matter(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from perdure import Engine, continue_as, receive, workflow\n"
        "@workflow\n"
        "async def takes(names: set[str]) -> None:\n"
        "    await receive('never')\n"
        "@workflow\n"
        "async def hops(names: set[str], left: int) -> None:\n"
        "    if left:\n"
        "        await continue_as(hops(names, left - 1))\n"
        "async def main() -> None:\n"
        f"    async with Engine('sqlite:///{tmp_path / 'shop.db'}') as engine:\n"
        "        await engine.start(takes({str(n) for n in range(20)}), id='r')\n"
        "        await engine.run(hops({str(n) for n in range(20)}, 1), id='c')\n"  # Only its digest is stored.
        "asyncio.run(main())\n"
    )
    for seed in ("1", "2"):
        subprocess.run([sys.executable, program], check=True, env={**os.environ, "PYTHONHASHSEED": seed})


# The one form.


FIVE = timezone(timedelta(hours=5))


class Shirt(msgspec.Struct, rename="camel", frozen=True):
    shirt_size: set[str]
    made_at: datetime | None = None


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2.0, {"x": -0.0}], [1.0, 2, {"x": 0}]),
        ({Part("p", frozenset("xyz")), Part("q")}, {Part("q"), Part("p", frozenset("zyx"))}),
        (Shirt({"s", "m", "l"}), {"shirtSize": {"l", "m", "s"}, "madeAt": None}),
        (Model(names={"a", "b"}, weight=2), {"names": {"b", "a"}, "weight": 2.0}),
        ({1: "x", 2.5: "y"}, {"1": "x", "2.5": "y"}),
        (({"a"}, frozenset({1, 2})), [["a"], [1, 2]]),
        ({datetime(2026, 1, 2, 5, tzinfo=FIVE): 1}, {datetime(2026, 1, 2, tzinfo=UTC): 1}),
        (Shirt(set(), datetime(2026, 1, 2, 5, tzinfo=FIVE)), Shirt(set(), datetime(2026, 1, 2, tzinfo=UTC))),
        ([datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.0"), b"x"], ["2026-01-02T00:00:00Z", "1.0", "eA=="]),
    ],
)
def test_equal_values_have_one_form(one: Any, another: Any) -> None:
    assert canonical(one) == canonical(another)


@pytest.mark.parametrize(
    ("one", "another"), [([1, 2], [2, 1]), (True, 1), ("1", 1), (None, 0), (1.5, 1), (2**53 + 1, 2.0**53), ([], {})]
)
def test_different_values_have_different_forms(one: Any, another: Any) -> None:
    assert canonical(one) != canonical(another)


def test_the_declared_type_says_what_is_equal() -> None:
    known = takes
    there = timezone(timedelta(hours=1))

    @workflow
    async def on(when: datetime) -> None: ...

    run = a_run("on")
    stored = msgspec.json.encode({"when": datetime(2026, 1, 1, tzinfo=UTC)}).decode()
    with pytest.raises(RunExists):
        check_same(run, stored, "on", msgspec.json.encode({"when": datetime(2026, 1, 2, tzinfo=there)}).decode(), on)
    stored = '{"names":["a","b"],"model":{"names":["x","y"],"weight":1}}'
    check_same(a_run("same.takes"), stored, "same.takes", stored.replace('"x","y"', '"y","x"'), known)


def test_what_an_earlier_version_remembered_is_still_known() -> None:
    origin = "same.takes 4d4d1e1b5cbfa5a1a5fd2c3f6ce7e4c8"
    with pytest.raises(RunExists):
        check_same(a_run("same.takes", origin), "{}", "same.takes", '{"names":["a"],"kilos":1.0}', takes)
    before = hashlib.sha256(b'{"kilos":1.0,"names":["a"]}').hexdigest()[:32]
    for origin in (f"same.takes {before}", f"same.takes {before} #2"):
        check_same(a_run("same.takes", origin), "{}", "same.takes", '{"names":["a"],"kilos":1.0}', takes)
    text = '{"when":"2026-01-01T17:30:00+05:30","others":[]}'
    before = hashlib.sha256(b'{"others":[],"when":"2026-01-01T17:30:00+05:30"}').hexdigest()[:32]
    check_same(a_run("same.at", f"same.at {before}"), "{}", "same.at", text, at)
    plain = '{"a":1,"b":"x"}'
    assert identity("w", plain) == f"w {hashlib.sha256(plain.encode()).hexdigest()[:32]}"


def a_run(name: str, origin: str = "") -> Run:
    return Run(id="r", workflow=name, status=Status.RUNNING, version=1, origin=origin, created_at=0, updated_at=0)
