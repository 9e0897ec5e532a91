"""Records: what definitions refer to by kind and name, version by version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import workflow
from perdure.errors import InvalidArguments, Misuse, RecordNotFound, UnstorableValue
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


@workflow
async def idle() -> None: ...


async def test_a_record_has_versions_and_the_same_body_is_the_same_version(source: StoreSource) -> None:
    async with Environment([idle], source) as env:
        engine = env.engine
        assert await engine.records.put("prompt", "greeting", {"a": 1, "b": [2]}, actor="ann") == 1
        assert await engine.records.put("prompt", "greeting", {"b": [2], "a": 1}) == 1
        assert await engine.records.put("prompt", "greeting", {"a": 2}) == 2
        assert await engine.records.put("prompt", "greeting", {"a": 1, "b": [2]}) == 3
        assert (await engine.records.get("prompt", "greeting")).version == 3
        first = await engine.records.get("prompt", "greeting", 1)
        assert (first.body, first.actor, first.version) == ({"a": 1, "b": [2]}, "ann", 1)
        await engine.records.put("prompt", "farewell", "bye")
        await engine.records.put("profile", "small", {"model": "m"})
        found = [(one.name, one.version) for one in await engine.records.list("prompt")]
        assert found == [("farewell", 1), ("greeting", 3)]
        assert [one.name for one in await engine.records.list("prompt", after="farewell")] == ["greeting"]


async def test_records_outlive_the_engine(source: StoreSource) -> None:
    async with Environment([idle], source) as env:
        await env.engine.records.put("prompt", "greeting", "hi")
        await env.restart()
        assert (await env.engine.records.get("prompt", "greeting")).body == "hi"


async def test_the_same_record_put_many_times_at_once_is_one_version(source: StoreSource) -> None:
    async with Environment([idle], source) as env:
        versions = await asyncio.gather(*(env.engine.records.put("prompt", "greeting", "hi") for _ in range(10)))
        assert set(versions) == {1}


async def test_what_is_not_there_and_what_cannot_be_is_told() -> None:
    async with Environment([idle]) as env:
        with pytest.raises(RecordNotFound, match="no prompt 'none'"):
            await env.engine.records.get("prompt", "none")
        await env.engine.records.put("prompt", "greeting", "hi")
        with pytest.raises(RecordNotFound, match="version 2"):
            await env.engine.records.get("prompt", "greeting", 2)
        with pytest.raises(UnstorableValue):
            await env.engine.records.put("prompt", "greeting", object())
        nothing: Any = ""
        with pytest.raises(InvalidArguments):
            await env.engine.records.put(nothing, "greeting", 1)
        with pytest.raises(Misuse, match="limit"):
            await env.engine.records.list("prompt", limit=5000)
