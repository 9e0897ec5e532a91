"""Runs that meet other code than they began with: where to go on is stored by name, and an order that does not fit
blocks the run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.cooperation import Operation, Scope, go_to
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.storage import open_store
from perdure.testing import Environment, StoreProxy
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree, run_of

ROOT, CHILD = topic("root"), topic("child")


class Numbers(StoreProxy):
    """Stores where to go on as earlier versions did: by its number alone."""

    async def commit(self, batch: Batch) -> Committed:
        if batch.cooperation is not None:
            batch.cooperation.events[:] = [
                event if event.next_step is None else replace(event, context="{}") for event in batch.cooperation.events
            ]
        return await self.inner.commit(batch)


def operation(diary: list[str], names: str, jumps: dict[str, Any] | None = None, asks: str = "A") -> Operation[Any]:
    """Steps with these names. The one in `asks` emits a message that a person handles."""
    made = Operation("root", ROOT)
    for name in names:

        async def step(scope: Scope, message: Any, name: str = name) -> Any:
            diary.append(name)
            if name == asks:
                await scope.emit(CHILD, {})
            return go_to((jumps or {})[name]) if name in (jumps or {}) else None

        made.step(name=name)(step)
    return made


async def redeployed(env: Environment, code: Operation[Any]) -> None:
    """The process is started again with other code, and the person has done what was asked for."""
    await env.settle()
    await env.restart([code])
    await env.engine.topics.complete(await run_of(env.engine, "person"))
    await env.settle()


@pytest.mark.parametrize("target", ["C", 2])
async def test_where_to_go_on_is_stored_by_name(source: StoreSource, target: Any) -> None:
    diary: list[str] = []
    async with Environment([operation(diary, "ABC", {"A": target})], source) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ROOT, {})
        await redeployed(env, changed := operation(diary, "AXBCD", {"A": target}))
        await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["A", "C", "D"]
        await agree(env, changed)


async def test_where_to_go_on_may_be_gone(source: StoreSource) -> None:
    diary: list[str] = []
    async with Environment([operation(diary, "ABC", {"A": "C"})], source) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ROOT, {})
        await redeployed(env, operation(diary, "AB"))
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert "is to go on with step 'C' after 'A'" in view.hold.reason
        await env.restart([fitting := operation(diary, "ABC")])
        await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["A", "C"]
        await agree(env, fitting)


async def test_a_number_that_an_earlier_version_stored_is_read(source: StoreSource) -> None:
    diary: list[str] = []
    inner = source if callable(source) else lambda: open_store(str(source))

    def earlier() -> Store:
        return Numbers(inner())

    async with Environment([operation(diary, "ABCD", {"A": "C"}, asks="A")], earlier) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ROOT, {})
        await redeployed(env, same := operation(diary, "ABCD"))
        await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["A", "C", "D"]
        await agree(env, same)


@pytest.mark.parametrize("names", ["BAC", "AXBC", "ACB", "B"])
async def test_steps_in_another_order_block_the_run(
    source: StoreSource, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    diary: list[str] = []
    async with Environment([operation(diary, "ABC", asks="B")], source) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ROOT, {})
        with caplog.at_level(logging.WARNING, "perdure"):
            await redeployed(env, operation(diary, names, asks="B"))
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert diary == ["A", "B"]
        assert view.hold.reason in caplog.text
        if names != "B":
            assert "the run executed 'A'" in view.hold.reason
            assert f"the code has {', '.join(map(repr, names))}" in view.hold.reason
        await env.restart([longer := operation(diary, "ABCD", asks="B")])
        await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["A", "B", "C", "D"]
        await agree(env, longer)
