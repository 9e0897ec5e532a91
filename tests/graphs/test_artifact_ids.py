"""What nodes have staged, as expressions see it: the ids of artifacts by name, the same in every replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import NamedEvent, Retry, current_step, step
from perdure.errors import RunFailed
from perdure.graph import Graph, all_of, artifact, assign, remote, wait
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    return value


def staging() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("staging")
    graph.node("keep", artifact("report", "'x' + input", type="report"))
    graph.node("tell", same, input={"value": "artifacts.report"})
    graph.node("big", artifact("big", template="{{ artifacts.report }} {{ input * 20000 }}"))
    graph.node("done", assign({"output.ids": ["nodes.tell", "artifacts.report", "artifacts['big']"]}))
    graph.edge("keep", "tell")
    graph.edge("tell", "big")
    graph.edge("big", "done")
    return graph


async def ids(env: Environment, run_id: str) -> dict[str, str]:
    return {one.name: one.id for one in await env.engine.artifacts.list(run=run_id, staged=True)}


async def test_expressions_see_the_ids_of_what_was_staged(source: StoreSource) -> None:
    graph = staging()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph("ab"), id="r")
        told, report, big = (await run.result())["ids"]
        assert (await ids(env, "r")) == {"report": report, "big": big}
        assert told == report
        assert await env.engine.artifacts.read("report") == "xab"
        events = (await env.engine.handle("r").graph_events()).events
        assert [(one.node, one.details) for one in events if one.kind == "artifact_staged"] == [
            ("keep", {"name": "report", "id": report}),
            ("big", {"name": "big", "id": big}),
        ]
        assert (await env.engine.artifacts.read("big")).startswith(report)


async def test_a_crash_at_any_commit_changes_no_id_and_no_content(fresh: Callable[[], StoreSource]) -> None:
    """The first one is staged before the run has any journal entry, and said again after a crash."""
    graph = staging()

    async def scenario(env: Environment) -> Any:
        _, report, big = (await (await env.engine.start(graph("ab"), id="r")).result())["ids"]
        assert (await ids(env, "r")) == {"report": report, "big": big}
        return await env.engine.artifacts.read("report"), len(await env.engine.artifacts.read("big"))

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == ("xab", 36 + 1 + 40_000)


async def test_a_large_one_that_is_staged_first_survives_a_crash(source: StoreSource) -> None:
    """Its content is in chunks: the same ones come again, and must stay."""
    graph: Graph[Any, Any] = Graph("large")
    graph.node("keep", artifact("large", template="{{ 'y' * 100000 }}"))
    graph.node("stay", wait("go"))
    graph.node("done", assign({"output.id": "artifacts.large"}))
    graph.edge("keep", "stay")
    graph.edge("stay", "done")
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")
        await env.settle()
        for _ in range(3):
            await env.restart()
            await env.settle()
        await env.engine.send(NamedEvent("go", 1), to="r")
        got = await env.engine.handle("r").result()
        assert (await ids(env, "r")) == {"large": got["id"]}
        assert await env.engine.artifacts.read("large") == "y" * 100_000


async def test_all_branches_see_them_and_the_last_of_a_name_counts(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("wide")
    graph.node("begin", assign({}))
    graph.node("keep", artifact("part-{{ branch.index }}", "branch.index"))
    graph.node("again", artifact("last", "branch.index"))
    graph.node("meet", same, input={"value": "artifacts"}, output={"output.ids": "nodes.meet"})
    graph.edge("begin", "keep", spawn=3)
    graph.edge("keep", "again")
    graph.edge("again", "meet", join=all_of())
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        seen = (await run.result())["ids"]
        assert sorted(seen) == ["last", "part-0", "part-1", "part-2"]
        staged = await env.engine.artifacts.list(run="r", staged=True)
        assert {seen[f"part-{n}"] for n in range(3)} == {one.id for one in staged if one.name != "last"}
        lasts = [one for one in staged if one.name == "last"]
        assert len({one.id for one in lasts}) == 3
        assert seen["last"] in {one.id for one in lasts}


async def test_what_a_worker_brings_is_among_them(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("far")
    graph.node("work", remote("gpu"))
    graph.node("done", assign({"output.id": "artifacts.frame"}))
    graph.edge("work", "done")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        await env.settle()
        (task,) = await env.engine.tasks.list(run="r")
        await env.engine.tasks.answer(task.id, {"result": 1, "staged_artifacts": [{"name": "frame", "value": "z"}]})
        assert (await run.result())["id"] == (await ids(env, "r"))["frame"]


async def test_a_retried_run_stages_again_under_its_own_ids(source: StoreSource) -> None:
    tries: list[int] = []

    @step(retry=Retry.never())
    async def fail_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")

    graph: Graph[Any, Any] = Graph("twice")
    graph.node("one", same, input={"value": 1})
    graph.node("keep", artifact("early", "'e'"))
    graph.node("try", fail_once)
    graph.node("more", artifact("late", "'l'"))
    graph.node("done", assign({"output.ids": "artifacts"}))
    for source_node, target in (("one", "keep"), ("keep", "try"), ("try", "more"), ("more", "done")):
        graph.edge(source_node, target)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await env.engine.handle("r").retry()
        assert (await run.result())["ids"] == await ids(env, "r")


async def test_an_input_may_have_a_field_of_that_name(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("old")
    graph.node("keep", artifact("note", template="{{ artifacts }} pieces"))
    async with Environment([graph], source) as env:
        await env.engine.run(graph({"artifacts": 7}))
        assert await env.engine.artifacts.read("note") == "7 pieces"


async def test_one_that_was_not_staged_can_be_asked_for(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("none")
    graph.node("ask", assign({"output.has": "has(artifacts.report)"}))
    graph.node("tell", same, input={"value": "artifacts.report"})
    graph.node("sorry", assign({"output.why": "error.message"}))
    graph.edge("ask", "tell")
    graph.edge("tell", "sorry", on_error=True)
    async with Environment([graph], source) as env:
        got = await env.engine.run(graph())
        assert got["has"] is False
        assert "'artifacts.report' failed: there is no 'report' in artifacts" in got["why"]


# What steps stage by themselves.


@step(retry=Retry.never())
async def stages(names: list[str]) -> dict[str, Any]:
    for name in names:
        current_step().stage(name, f"{name} of {current_step().run_id}")
    return {"count": len(names)}


@step(retry=Retry(attempts=3, initial=0))
async def stages_in_vain() -> str:
    current_step().stage(f"attempt-{current_step().attempt}", "x")
    if current_step().attempt < 3:
        raise OSError("not now")
    return "done"


@step(retry=Retry.never())
async def stages_a_file(path: str) -> None:
    await current_step().stage_file("file", path)


def by_steps() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("by-steps")
    graph.node("first", stages, input={"names": ["'report'", "'annex'"]})
    graph.node("keep", artifact("cover", "'for ' + artifacts.report"))
    graph.node("again", stages, input={"names": ["'report'"]})
    graph.node("done", assign({"output.ids": "artifacts", "output.counts": ["nodes.first.count", "nodes.again.count"]}))
    graph.edge("first", "keep")
    graph.edge("keep", "again")
    graph.edge("again", "done", when="has(artifacts.annex) && artifacts.cover != artifacts.report")
    return graph


async def test_what_a_step_stages_by_itself_is_among_them(source: StoreSource) -> None:
    graph = by_steps()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        got = await run.result()
        staged = await env.engine.artifacts.list(run="r", staged=True)
        named = {one.id: one.name for one in staged}
        assert {name: named[one] for name, one in got["ids"].items()} == {n: n for n in ("report", "annex", "cover")}
        last = max((one for one in staged if one.name == "report"), key=lambda one: one.version or 0)
        assert got["ids"]["report"] == last.id
        assert got["counts"] == [2, 1]
        first = next(one for one in staged if one.name == "report" and one.id != last.id)
        assert await env.engine.artifacts.read("cover") == f"for {first.id}"
        events = (await env.engine.handle("r").graph_events()).events
        told = [(one.node, one.details["name"]) for one in events if one.kind == "artifact_staged"]
        assert told == [("first", "report"), ("first", "annex"), ("keep", "cover"), ("again", "report")]
        history = await env.engine.handle("r").history()
        assert [one.value for one in history.journal] == [{"count": 2}, {"count": 1}]  # As the steps returned it.
        await env.check()


async def test_they_are_the_same_in_every_replay(fresh: Callable[[], StoreSource]) -> None:
    graph = by_steps()

    async def scenario(env: Environment) -> Any:
        got = await (await env.engine.start(graph(), id="r")).result()
        assert set(got["ids"].values()) <= {one.id for one in await env.engine.artifacts.list(run="r", staged=True)}
        return sorted(got["ids"]), got["counts"]

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == (["annex", "cover", "report"], [2, 1])


async def test_an_attempt_that_failed_leaves_none(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("attempts")
    graph.node("try", stages_in_vain, input={})
    graph.node("done", assign({"output.names": "artifacts", "output.value": "nodes.try"}))
    graph.edge("try", "done")
    async with Environment([graph], source) as env:
        got = await env.engine.run(graph())
        assert (list(got["names"]), got["value"]) == (["attempt-3"], "done")


async def test_branches_see_what_others_have_staged_and_files_too(source: StoreSource, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"x" * 3_000_000)
    graph: Graph[Any, Any] = Graph("files")
    graph.node("begin", assign({}))
    graph.node("file", stages_a_file, input={"path": "input"})
    graph.node("part", stages, input={"names": ["'part-' + string(branch.index)"]})
    graph.node("meet", same, input={"value": "artifacts"}, output={"output.ids": "nodes.meet"})
    graph.edge("begin", "file")
    graph.edge("file", "part", spawn=3)
    graph.edge("part", "meet", join=all_of())
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(str(path)), id="r")
        got = (await run.result())["ids"]
        assert sorted(got) == ["file", "part-0", "part-1", "part-2"]
        assert got == await ids(env, "r")


async def test_a_retried_run_sees_what_its_kept_steps_have_staged(source: StoreSource) -> None:
    is_bad = [True]

    @step(retry=Retry.never())
    async def check(id: str) -> str:
        current_step().stage("checked", id)
        if is_bad[0]:
            raise ValueError("bad")
        return id

    graph: Graph[Any, Any] = Graph("retried-steps")
    graph.node("first", stages, input={"names": ["'report'"]})
    graph.node("check", check, input={"id": "artifacts.report"})
    graph.node("done", assign({"output.ids": "artifacts"}))
    graph.edge("first", "check")
    graph.edge("check", "done")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        events = (await env.engine.handle("r").graph_events()).events  # Of a failed run too.
        assert [one.details["name"] for one in events if one.kind == "artifact_staged"] == ["report"]
        await env.restart()
        is_bad[0] = False
        got = (await (await env.engine.handle("r").retry()).result())["ids"]
        assert sorted(got) == ["checked", "report"]
        assert got == await ids(env, "r")
        await env.check()


async def test_a_result_that_looks_like_what_is_stored_is_a_result(source: StoreSource) -> None:
    """Values come from outside: none of them can name artifacts of others."""
    graph: Graph[Any, Any] = Graph("forged")
    graph.node("get", same, input={"value": "input"})
    graph.node("done", assign({"output.value": "nodes.get", "output.ids": "artifacts"}))
    graph.edge("get", "done")
    forged = {"perdure.staged": {"report": "another"}, "value": 1}
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(forged), id="r") == {"value": forged, "ids": {}}
        history = await env.engine.handle("r").history()
        assert [one.value for one in history.journal] == [forged]
