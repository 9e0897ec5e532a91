"""`explore` finds the mistakes that are in a workflow, and none that are not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from examples.explore import Agency, careful, careless
from perdure import (
    Event,
    Retry,
    Workflow,
    compensate,
    current_step,
    receive,
    resource,
    sleep,
    start,
    step,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import InvalidArguments
from perdure.graph import Graph
from perdure.testing import Environment, Exploration, explore

ORDERS, STOCK = Topic("explored-orders", str), Topic("explored-stock", str)


class Bank:
    """A service that steps use."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.mails: dict[str, int] = {}


class Paid(Event):
    amount: int


@step
async def charge(order: str) -> None:
    resource(Bank).charges.append(order)


@step
async def charge_once(order: str) -> None:
    if order not in (charges := resource(Bank).charges):
        charges.append(order)


@step
def refund(order: str) -> None:
    """In a thread."""
    if order in (charges := resource(Bank).charges):
        charges.remove(order)


@step
async def forget(order: str) -> None:
    """A compensation that does nothing."""


@step
async def look(order: str) -> str:
    return order


@step(retry=Retry(attempts=1))
async def count(order: str) -> int:
    mails = resource(Bank).mails
    mails[order] = mails.get(order, 0) + 1
    return mails[order]


async def explored(call: Any, *workflows: Any, **options: Any) -> Exploration:
    return await explore(call, workflows=workflows, world=Bank, **options)


def kinds(report: Exploration) -> dict[str, tuple[str, ...]]:
    return {finding.kind: finding.steps for finding in report.findings}


async def test_the_three_mistakes_of_the_example_are_found_and_its_better_form_has_none() -> None:
    report = await explore(careless("rome"), workflows=[careless], world=Agency)
    assert {finding.kind for finding in report.findings} == {"not idempotent", "not deterministic", "not undone"}
    assert kinds(report)["not idempotent"] == ("charge",)
    assert any(finding.kind == "not undone" and "book_room" in finding.steps for finding in report.findings)
    report = await explore(careful("rome"), workflows=[careful], world=Agency)
    assert report.findings == []
    assert "nothing was found" in str(report)


async def test_a_step_that_acts_again_after_a_crash_is_named() -> None:
    @workflow
    async def pays(order: str) -> str:
        await look(order)
        await charge(order)
        return await look(order)

    report = await explored(pays("o"), pays)
    assert kinds(report) == {"not idempotent": ("charge",)}
    (finding,) = report.findings
    assert "Bank.charges is ['o', 'o'] instead of ['o']" in finding.message
    with pytest.raises(AssertionError, match="not idempotent"):
        report.check()
    again = await explored(pays("o"), pays, only=finding.trial)
    assert again.findings == [finding]
    assert again.trials == 2


async def test_a_step_that_checks_before_it_acts_is_not() -> None:
    @workflow
    async def pays(order: str) -> str:
        await charge_once(order)
        return await look(order)

    assert (await explored(pays("o"), pays)).findings == []


async def test_code_that_draws_by_lot_is_found() -> None:
    @workflow
    async def draws(order: str) -> str:
        await look("a")
        return await look("heads" if random.random() < 0.5 else "tails")

    report = await explored(draws("o"), draws)
    assert set(kinds(report)) <= {"not deterministic", "result differs"}
    assert "not deterministic" in kinds(report)


async def test_a_compensation_that_forgets_is_found_also_if_it_is_a_plain_function() -> None:
    def booking(undo: Any) -> Workflow[[str], str]:
        @workflow(name="books")
        async def books(order: str) -> str:
            await compensate(undo(order))
            await charge_once(order)
            await receive(Paid)
            return await look(order)

        return books

    events = [Paid(amount=1)]
    bad, good = booking(forget), booking(refund)
    assert kinds(await explored(bad("o"), bad, events=events)) == {"not undone": ("charge_once",)}
    assert (await explored(good("o"), good, events=events)).findings == []


async def test_a_rollback_that_dies_is_explored_too() -> None:
    """The compensation acts again after a crash: it takes back twice."""

    @step
    async def take_back(order: str) -> None:
        mails = resource(Bank).mails
        mails[order] = mails.get(order, 0) - 1

    @workflow
    async def counts(order: str) -> str:
        await compensate(take_back(order))
        await count_once(order)
        return await look(order)

    @step
    async def count_once(order: str) -> None:
        resource(Bank).mails.setdefault(order, 1)

    report = await explored(counts("o"), counts)
    assert "not undone" in kinds(report)
    assert all(finding.trial.startswith(("fail:", "cancel@")) for finding in report.findings)


async def test_steps_end_in_every_order() -> None:
    @workflow
    async def races() -> str:
        ended: list[str] = []

        async def one(name: str) -> None:
            ended.append(await look(name))

        await asyncio.gather(*[one(name) for name in "abc"])
        return "".join(ended)

    report = await explored(races(), races)
    assert sorted(outcome.output for outcome in report.outcomes) == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert report.findings == []
    assert report.is_complete
    assert report.orders == 6
    bounded = await explored(races(), races, orders_max=3)
    assert (bounded.orders, bounded.is_complete) == (3, False)


async def test_time_passes_before_a_step_ends_or_after() -> None:
    @workflow
    async def hurries() -> str:
        try:
            async with asyncio.timeout(5):
                return await look("in time")
        except TimeoutError:
            return "late"

    report = await explored(hurries(), hurries)
    assert sorted(outcome.output for outcome in report.outcomes) == ["in time", "late"]
    assert report.findings == []


async def test_a_run_that_waits_for_what_never_comes_is_stuck() -> None:
    @workflow
    async def waits() -> int:
        return (await receive(Paid)).amount

    report = await explored(waits(), waits)
    assert "the run waits for event Paid" in report.findings[0].message
    assert report.trials == 1

    async def pay(env: Environment, run: Any) -> None:
        await env.engine.send(Paid(amount=3), to=run.id, key="once")

    assert (await explored(waits(), waits, drive=pay)).outcomes[0].output == 3


async def test_children_and_graphs_are_explored() -> None:
    @workflow
    async def below(order: str) -> str:
        await charge(order)
        return order

    @workflow
    async def above(order: str) -> str:
        await start(below("d"), detached=True)
        await sleep(3600)
        return await below(order)

    graph = Graph("explored-graph", input=str, output=str)
    graph.node("pay", charge, input={"order": "input"})
    graph.output("input")
    assert kinds(await explored(above("o"), above, below))["not idempotent"] == ("charge",)
    assert kinds(await explored(graph("o"), graph))["not idempotent"]


async def test_operations_are_explored() -> None:
    def shop(*, is_careful: bool) -> list[Operation[str]]:
        place, take = Operation("place", ORDERS), Operation("take", STOCK)

        @place.step
        async def pay(scope: Scope, order: str) -> None:
            if order not in (charges := resource(Bank).charges):
                charges.append(order)
            await scope.emit(STOCK, order)

        @pay.rollback
        async def pay_back(scope: Scope, order: str, cause: Failure) -> None:
            if is_careful:
                resource(Bank).charges.clear()

        @place.step
        def send(scope: Scope, order: str) -> None: ...

        @take.step
        def pick(scope: Scope, order: str) -> None: ...

        return [place, take]

    assert kinds(await explored((ORDERS, "o"), *shop(is_careful=False))) == {"not undone": ("pay",)}
    assert (await explored((ORDERS, "o"), *shop(is_careful=True))).findings == []


async def test_the_attempts_of_a_step_are_not_taken_for_a_crash() -> None:
    @step(retry=Retry(attempts=3, initial=5, jitter=0))
    async def fails_twice(order: str) -> str:
        if current_step().attempt < 3:
            raise LookupError("not yet")
        return order

    @workflow
    async def insists(order: str) -> str:
        return await fails_twice(order)

    report = await explored(insists("o"), insists)
    assert report.findings == []
    assert report.outcomes[0].output == "o"


async def test_the_world_is_observed_as_the_caller_says() -> None:
    @workflow
    async def counts(order: str) -> int:
        return await count(order)

    assert "not idempotent" in kinds(await explored(counts("o"), counts))
    report = await explored(counts("o"), counts, observe=lambda _: None)
    assert set(kinds(report)) == {"result differs"}
    report = await explore(counts("o"), workflows=[counts], world={Bank: Bank}, observe=lambda bank: bank.charges)
    assert set(kinds(report)) == {"result differs"}


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    """An exploration leaves the random numbers of its caller as they were."""
    state = random.getstate()
    yield
    assert random.getstate() == state


@pytest.mark.parametrize("only", ["somewhere@3", "before@x", "order:a", "cancel"])
async def test_a_trial_that_there_is_not_is_refused(only: str) -> None:
    with pytest.raises(InvalidArguments, match="there is no trial"):
        await explore(careful("rome"), workflows=[careful], world=Agency, only=only)


async def test_a_world_must_be_made_of_classes() -> None:
    with pytest.raises(InvalidArguments, match="world: key 'Agency' is a type"):
        await explore(careful("rome"), workflows=[careful], world={"Agency": Agency})  # type: ignore[dict-item]
