"""Artifacts: staged by steps and by workflow code, published with the success of their run and never otherwise."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import (
    Client,
    Engine,
    Limits,
    Retry,
    compensate,
    continue_as,
    current_step,
    receive,
    resource,
    stage,
    step,
    workflow,
)
from perdure.engine import AnyClient
from perdure.errors import (
    ArtifactNotFound,
    InvalidArguments,
    InvariantViolated,
    Misuse,
    NotInStep,
    NotInWorkflow,
    RunCancelled,
    RunFailed,
    UnstorableValue,
)
from perdure.models.functions import artifacts
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.functions.artifact_steps import stages_in_a_process

LARGE = "ä" * artifacts.INLINE_BYTES_MAX


class World:
    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.is_mended = False
        self.attempts = 0
        self.gate = asyncio.Event()


@step(retry=Retry.never())
async def summarise(number: int) -> int:
    current_step().stage("summary", {"number": number}, type="report")
    return number


@step(retry=Retry.never())
async def store_file() -> None:
    file = resource(World).file
    assert file is not None
    await current_step().stage_file("data", file, type="file")


@step(retry=Retry.never())
def store_file_in_a_thread() -> None:
    world = resource(World)
    assert world.file is not None
    current_step().stage("raw", b"\0\xff", media_type="image/x-dots")
    current_step().stage_file("data", world.file, media_type="application/x-data")


@step(retry=Retry(attempts=3))
async def falters() -> str:
    world = resource(World)
    world.attempts += 1
    current_step().stage("try", world.attempts)
    if world.file is not None:
        await current_step().stage_file("data", world.file)
    if world.attempts < 3:
        raise ConnectionError("down")
    return "up"


@step(retry=Retry.never())
async def fragile() -> str:
    current_step().stage("fragile", "staged")
    if not resource(World).is_mended:
        raise ConnectionError("down")
    return "up"


@workflow
async def report(number: int) -> int:
    await stage("begun", [number])
    got = await summarise(number)
    await stage("text", LARGE, type="prose", by="writer")
    return got


async def published(engine: AnyClient, **wanted: Any) -> list[tuple[str, int | None, Any]]:
    """Name, version and content of all artifacts, by name and version."""
    found = await engine.artifacts.list(**wanted)
    return sorted([(one.name, one.version, await engine.artifacts.read(id=one.id)) for one in found], key=str)


async def test_the_success_of_a_run_publishes_what_it_has_staged(source: StoreSource) -> None:
    async with Environment([report], source) as env:
        await env.engine.run(report(7), id="r")
        assert await published(env.engine) == [("begun", 1, [7]), ("summary", 1, {"number": 7}), ("text", 1, LARGE)]
        one = await env.engine.artifacts.get("summary")
        assert (one.run_id, one.workflow, one.step, one.position, one.attempt) == ("r", "report", "summarise", "1", 1)
        assert (one.type, one.media_type, one.form, one.size) == ("report", "application/json", "json", 12)
        assert one.published_at is not None
        text = await env.engine.artifacts.get("text")
        assert (text.step, text.position, text.attempt, text.size) == ("writer", "", 0, len(LARGE.encode()))
        await env.check()


async def test_every_run_gets_the_next_version(source: StoreSource) -> None:
    async with Environment([report], source) as env:
        for number in range(1, 4):
            await env.engine.run(report(number))
        assert await env.engine.artifacts.read("summary") == {"number": 3}
        assert await env.engine.artifacts.read("summary", 2) == {"number": 2}
        assert {one.version for one in await env.engine.artifacts.list(name="begun")} == {1, 2, 3}
        with pytest.raises(ArtifactNotFound, match="version 4"):
            await env.engine.artifacts.get("summary", 4)


async def test_runs_that_end_at_the_same_time_have_versions_of_their_own(source: StoreSource) -> None:
    async with Environment([report], source) as env:
        await asyncio.gather(*(env.engine.run(report(number)) for number in range(20)))
        versions = [one.version for one in await env.engine.artifacts.list(name="summary")]
        assert sorted(version or 0 for version in versions) == list(range(1, 21))


@workflow
async def waits_staged() -> str:
    await stage("begun", 1)
    await summarise(1)
    await receive("go")
    return "done"


async def test_until_then_it_is_seen_only_by_who_asks_for_what_is_staged(source: StoreSource) -> None:
    async with Environment([waits_staged], source) as env:
        await env.engine.start(waits_staged(), id="r")
        await env.quiet()
        assert await env.engine.artifacts.list() == []
        with pytest.raises(ArtifactNotFound, match="summary"):
            await env.engine.artifacts.read("summary")
        staged = await env.engine.artifacts.list(run="r", staged=True)
        assert {one.name: one.version for one in staged} == {"begun": None, "summary": None}
        assert await env.engine.artifacts.read(id=staged[0].id) is not None


async def test_a_cancelled_run_publishes_nothing(source: StoreSource) -> None:
    async with Environment([waits_staged], source) as env:
        run = await env.engine.start(waits_staged(), id="r")
        await env.quiet()
        await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert await env.engine.artifacts.list(staged=True) == []
        await env.check()


async def test_a_run_that_nobody_has_in_memory_is_cancelled_with_what_it_has_staged(source: StoreSource) -> None:
    async with Environment([waits_staged], source, limits=Limits(live_runs_max=1)) as env:
        for number in range(3):
            await env.engine.start(waits_staged(), id=f"r-{number}")
            await env.quiet()
        for number in range(3):
            await env.engine.handle(f"r-{number}").cancel()
        assert await env.engine.artifacts.list(staged=True) == []
        await env.check()


@workflow
async def retried() -> str:
    await stage("begun", 1)
    await summarise(1)
    got = await fragile()
    await stage("end", got)
    return got


async def test_a_failed_run_publishes_nothing_until_a_retry_succeeds(source: StoreSource) -> None:
    world = World()
    async with Environment([retried], source, resources={World: lambda: world}) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(retried(), id="r")
        assert await env.engine.artifacts.list(staged=True) == []
        await env.check()
        world.is_mended = True
        await env.restart()
        await (await env.engine.handle("r").retry()).result()
        expected = [("begun", 1, 1), ("end", 1, "up"), ("fragile", 1, "staged"), ("summary", 1, {"number": 1})]
        assert await published(env.engine) == expected
        await env.check()


_mended: list[bool] = []


@workflow
async def says_more_when_mended() -> str:
    await summarise(1)
    await stage("before", 1)
    if not _mended:
        raise ValueError("not yet")
    await stage("after", 2)
    return "done"


async def test_code_that_comes_further_after_a_retry_stages_no_artifact_twice(source: StoreSource) -> None:
    _mended.clear()
    async with Environment([says_more_when_mended], source) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(says_more_when_mended(), id="r")
        _mended.append(True)
        await (await env.engine.handle("r").retry()).result()
        assert await published(env.engine) == [("after", 1, 2), ("before", 1, 1), ("summary", 1, {"number": 1})]


@step
async def undo() -> None:
    current_step().stage("undone", 1)


@workflow
async def compensated() -> None:
    await summarise(1)
    await compensate(undo())
    raise ValueError("no")


async def test_a_run_that_is_rolled_back_publishes_nothing(source: StoreSource) -> None:
    async with Environment([compensated], source) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(compensated(), id="r")
        assert await env.engine.handle("r").status() == "rolled_back"
        assert await env.engine.artifacts.list(staged=True) == []
        await env.check()


@workflow
async def falters_on_the_way() -> str:
    return await falters()


async def test_only_the_attempt_that_succeeds_leaves_an_artifact(source: StoreSource) -> None:
    world = World()
    async with Environment([falters_on_the_way], source, resources={World: lambda: world}) as env:
        await env.engine.run(falters_on_the_way())
        assert await published(env.engine) == [("try", 1, 3)]
        assert (await env.engine.artifacts.get("try")).attempt == 3


@step(retry=Retry.never())
async def returns_what_cannot_be_stored() -> Any:
    current_step().stage("summary", 1)
    return object()


@workflow
async def catches() -> str:
    try:
        await returns_what_cannot_be_stored()
    except UnstorableValue:
        return "caught"
    return "?"


async def test_a_step_whose_result_cannot_be_stored_leaves_no_artifact(source: StoreSource) -> None:
    async with Environment([catches], source) as env:
        assert await env.engine.run(catches()) == "caught"
        assert await env.engine.artifacts.list() == []


@workflow
async def laps(number: int) -> int:
    await stage("lap", number)
    await summarise(number)
    if number < 3:
        await continue_as(laps(number + 1))
    return number


async def test_a_run_that_goes_on_as_another_call_publishes_all_it_has_staged(source: StoreSource) -> None:
    async with Environment([laps], source) as env:
        await env.engine.run(laps(1))
        expected: list[Any] = [("lap", n, n) for n in (1, 2, 3)]
        expected += [("summary", n, {"number": n}) for n in (1, 2, 3)]
        assert await published(env.engine) == expected


# Files.


@workflow
async def keeps_files() -> None:
    await store_file()
    await store_file_in_a_thread()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes(bytes(range(256)) * 10_000)
    return path


async def test_a_file_is_staged_from_coroutines_and_threads(source: StoreSource, file: Path) -> None:
    async with Environment([keeps_files], source, resources={World: lambda: World(file)}) as env:
        await env.engine.run(keeps_files())
        content = file.read_bytes()
        assert await env.engine.artifacts.read("data", 1) == content
        assert await env.engine.artifacts.read("raw") == b"\0\xff"
        one = await env.engine.artifacts.get("data")
        parts = [part async for part in env.engine.artifacts.open(one.id)]
        assert b"".join(parts) == content
        assert [len(part) for part in parts] == [2**20, 2**20, len(content) - 2 * 2**20]
        assert (one.media_type, one.size, one.form) == ("application/x-data", len(content), "bytes")
        assert (await env.engine.artifacts.get("data", 1)).media_type == "text/csv"
        await env.check()


async def test_an_empty_file_is_an_artifact_too(source: StoreSource, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    async with Environment([keeps_files], source, resources={World: lambda: World(empty)}) as env:
        await env.engine.run(keeps_files())
        assert await env.engine.artifacts.read("data", 2) == b""


async def test_a_missing_file_fails_the_step(source: StoreSource, tmp_path: Path) -> None:
    async with Environment([keeps_files], source, resources={World: lambda: World(tmp_path / "none")}) as env:
        with pytest.raises(RunFailed, match="FileNotFoundError"):
            await env.engine.run(keeps_files())


async def test_parts_of_files_of_failed_attempts_are_gone(file: Path) -> None:
    database = MemoryDatabase()
    world = World(file)
    options: Any = {"resources": {World: lambda: world}}
    async with Environment([falters_on_the_way], lambda: MemoryStore(database), **options) as env:
        await env.engine.run(falters_on_the_way())
        await env.quiet()
        (one,) = await env.engine.artifacts.list(name="data")
        assert list(database.artifacts.chunks) == [one.id]


@step(retry=Retry.never())
async def hangs_after_a_file() -> None:
    world = resource(World)
    assert world.file is not None
    await current_step().stage_file("data", world.file)
    await world.gate.wait()


@workflow
async def hangs() -> None:
    await hangs_after_a_file()


async def test_parts_of_a_file_go_with_a_run_that_is_cancelled_meanwhile(file: Path) -> None:
    database = MemoryDatabase()
    options: Any = {"resources": {World: lambda: World(file)}, "autojump_s": None}
    async with Environment([hangs], lambda: MemoryStore(database), **options) as env:
        await env.engine.start(hangs(), id="r")
        while len(next(iter(database.artifacts.chunks.values()), {})) < 3:
            await asyncio.sleep(0)
        await env.engine.handle("r").cancel()
        assert database.artifacts.chunks == {}


# Crashes.


@workflow
async def keeps_all() -> str:
    await stage("begun", "first")
    await asyncio.gather(summarise(1), summarise(2))
    await store_file()
    await stage("text", LARGE)
    return "done"


async def test_a_crash_at_any_commit_neither_loses_nor_doubles_an_artifact(
    fresh: Callable[[], StoreSource], file: Path
) -> None:
    async def scenario(env: Environment) -> list[Any]:
        await (await env.engine.start(keeps_all(), id="r")).result()
        found = await published(env.engine, run="r")
        return sorted(((name, content) for name, _, content in found), key=str)

    options: Any = {"resources": {World: lambda: World(file)}}
    outcome = await run_with_crashes(scenario, workflows=[keeps_all], store=fresh, **options)
    assert [name for name, _ in outcome.result] == ["begun", "data", "summary", "summary", "text"]
    assert outcome.commits >= 6


async def test_a_crash_leaves_no_parts_of_files_behind(file: Path) -> None:
    databases: list[MemoryDatabase] = []

    def fresh() -> StoreSource:
        database = MemoryDatabase()
        databases.append(database)
        return lambda: MemoryStore(database)

    async def scenario(env: Environment) -> int:
        await (await env.engine.start(keeps_all(), id="r")).result()
        await env.quiet()
        return len(await env.engine.artifacts.list())

    options: Any = {"resources": {World: lambda: World(file)}}
    await run_with_crashes(scenario, workflows=[keeps_all], store=fresh, **options)
    for database in databases:
        assert database.artifacts.chunks.keys() <= database.artifacts.artifacts.keys()


# What cannot be.


class Rot:
    """A codec that hides payloads a little."""

    def encode(self, text: str) -> str:
        return text[::-1]

    decode = encode


async def test_content_goes_through_the_codec(file: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    resources = {World: lambda: World(file)}
    async with Engine(url, workflows=[keeps_files, report], codec=Rot(), resources=resources) as engine:
        await engine.run(keeps_files())
        await engine.run(report(1))
        assert await engine.artifacts.read("data") == file.read_bytes()
        assert await engine.artifacts.read("begun") == [1]
        assert await engine.artifacts.read("text") == LARGE
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        (content,) = connection.execute("select content from artifacts where name = 'begun'").fetchone()
        (data,) = connection.execute("select data from artifact_chunks limit 1").fetchone()
    connection.close()
    assert content == "]1["
    assert bytes(range(256)) not in data


async def test_content_that_was_tampered_with_is_not_handed_out() -> None:
    database = MemoryDatabase()
    async with Environment([report], lambda: MemoryStore(database)) as env:
        await env.engine.run(report(1))
        one = await env.engine.artifacts.get("begun")
        database.artifacts.artifacts[one.id] = msgspec.structs.replace(
            database.artifacts.artifacts[one.id], content="[2]"
        )
        with pytest.raises(InvariantViolated, match="digest"):
            await env.engine.artifacts.read("begun")


@workflow
async def stages_bytes() -> None:
    await stage("raw", b"bytes")


@workflow
async def stages_in_process() -> None:
    await stages_in_a_process()


@step(transactional=True, retry=Retry.never())
def stages_in_its_transaction(is_file: bool) -> None:
    if is_file:
        current_step().stage_file("x", __file__)
    else:
        current_step().stage("x", 1)


@workflow
async def stages_in_a_transaction(is_file: bool) -> None:
    await stages_in_its_transaction(is_file)


@pytest.mark.parametrize("is_file", [False, True])
async def test_a_transactional_step_cannot_stage(is_file: bool, tmp_path: Path) -> None:
    """After a crash its result may be known without its running again: what it had staged would be missing."""
    async with Environment([stages_in_a_transaction], f"sqlite:///{tmp_path / 'runs.db'}") as env:
        with pytest.raises(RunFailed, match="is transactional, and transactional steps cannot stage"):
            await env.engine.run(stages_in_a_transaction(is_file))


@step(retry=Retry.never())
async def calls_the_wrong_verb() -> None:
    await stage("x", 1)


@workflow
async def wrong_verb() -> None:
    await calls_the_wrong_verb()


@pytest.mark.parametrize(
    ("flow", "match"),
    [(stages_bytes, "let a step stage"), (stages_in_process, "worker process"), (wrong_verb, "current_step")],
)
async def test_what_cannot_be_staged_is_refused_with_what_to_do_instead(flow: Any, match: str) -> None:
    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match=match):
            await env.engine.run(flow())


@step(retry=Retry.never())
async def stages(name: Any, value: Any, options: dict[str, Any]) -> None:
    current_step().stage(name, "x" * value if isinstance(value, int) else value, **options)


@workflow
async def stages_one(name: Any, value: Any, options: dict[str, Any]) -> None:
    await stages(name, value, options)


@pytest.mark.parametrize(
    ("name", "value", "options", "match"),
    [
        ("", 1, {}, "an artifact's name"),
        ("x", 3_000_000, {}, "stage_file"),
        ("x", "{", {"media_type": "application/json"}, "is said to be JSON"),
        ("x", "1", {"type": "a" * 501}, "an artifact's type"),
    ],
)
async def test_bad_arguments_are_refused(name: str, value: Any, options: Any, match: str) -> None:
    async with Environment([stages_one]) as env:
        with pytest.raises(RunFailed, match=match) as failed:
            await env.engine.run(stages_one(name, value, options))
        assert isinstance(failed.value.__cause__, InvalidArguments)


async def test_verbs_belong_where_they_are_known() -> None:
    with pytest.raises(NotInWorkflow):
        await stage("x", 1)
    with pytest.raises(NotInStep):
        current_step().stage("x", 1)
    async with Environment([report]) as env:
        with pytest.raises(InvalidArguments, match="say which artifact"):
            await env.engine.artifacts.read()
        with pytest.raises(ArtifactNotFound):
            await env.engine.artifacts.read(id="none")
        with pytest.raises(Misuse, match="limit"):
            await env.engine.artifacts.list(limit=0)


async def test_json_text_is_read_as_json() -> None:
    async with Environment([stages_one]) as env:
        await env.engine.run(stages_one("x", '{"a": [1]}', {"media_type": "application/ld+json"}))
        assert await env.engine.artifacts.read("x") == {"a": [1]}


async def test_a_client_reads_artifacts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Engine(url, workflows=[report]) as engine, Client(url) as client:
        await engine.run(report(1))
        assert await client.artifacts.read("summary") == {"number": 1}
        assert [one.name for one in await client.artifacts.list(type="prose")] == ["text"]
