"""Graphs beside LangGraph with its SQLite checkpointer, in one run: runs per second, and bytes on disk.

`make bench-graphs` runs it in an environment that has both. Both keep every step before the next one begins, in one
SQLite file with a write-ahead log and synchronous=full (LangGraph: durability="sync"). Every result is a text of 1 KB.

- chain: ten nodes one after the other, whose results are all kept
- relay: the same, where each result takes the place of the one before in LangGraph's state; Perdure keeps them all
- fan_out: a hundred branches that meet

Each measurement has a process and a file of its own; those of the two alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import operator
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypedDict

from msgspec.json import decode, encode

from bench import loop
from bench.figures import Figures, medians, paired
from perdure import Engine, Retry, step
from perdure.graph import Graph, all_of, append

NODES = 10
BRANCHES = 100
RESULT_BYTES = 1_024
WORKLOADS = ("chain", "relay", "fan_out")
THROUGHPUT_MIN = 5.0  # times LangGraph's
BYTES_MAX = 1 / 3  # of LangGraph's
TIMEOUT_S = 300

Run = Callable[[int], Awaitable[int]]  # the number of a run -> how many results it has seen at its end


def text() -> str:
    """What nothing can make shorter."""
    return base64.b64encode(random.randbytes(RESULT_BYTES * 3 // 4)).decode()


@step(retry=Retry.never())
async def write(before: str) -> str:
    assert not before or len(before) == RESULT_BYTES
    return text()


@step(retry=Retry.never())
async def plan() -> list[int]:
    return list(range(BRANCHES))


@step(retry=Retry.never())
async def branch(_number: int) -> str:
    return text()


@step(retry=Retry.never())
async def count(results: list[str]) -> int:
    return len(results)


def chain() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("chain")
    for number in range(NODES):
        graph.node(f"n{number}", write, input={"before": f"nodes.n{number - 1}" if number else "''"})
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    graph.output({"seen": str(NODES)})
    return graph.build()


def fan_out() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("fan_out")
    graph.node("plan", plan)
    graph.node("branch", branch, input={"_number": "branch.item"})
    graph.node("count", count, input={"results": "state.results"})
    graph.edge("plan", "branch", foreach="nodes.plan")
    graph.edge("branch", "count", join=all_of(), merge=append("state.results"))
    graph.output({"seen": "nodes.count"})
    return graph.build()


async def perdure(workload: str, path: Path, measured: Callable[[Run], Awaitable[None]]) -> None:
    graph = fan_out() if workload == "fan_out" else chain()
    async with Engine(f"sqlite:///{path}", workflows=[graph]) as engine:

        async def run(_number: int) -> int:
            seen: int = (await engine.run(graph()))["seen"]
            return seen

        await measured(run)


def _their_chain(is_kept: bool) -> Any:
    graphs: Any = import_module("langgraph.graph")
    keys = [f"n{number}" for number in range(NODES)] if is_kept else ["text"] * NODES
    builder = graphs.StateGraph(_state(dict.fromkeys(keys, str)))

    def node(number: int) -> Callable[[dict[str, str]], Awaitable[dict[str, str]]]:
        async def write(state: dict[str, str]) -> dict[str, str]:
            before = state[keys[number - 1]] if number else ""
            assert not before or len(before) == RESULT_BYTES
            return {keys[number]: text()}

        return write

    for number in range(NODES):
        builder.add_node(f"node{number}", node(number))
        builder.add_edge(f"node{number - 1}" if number else graphs.START, f"node{number}")
    builder.add_edge(f"node{NODES - 1}", graphs.END)
    return builder


def _their_fan_out() -> Any:
    graphs: Any = import_module("langgraph.graph")
    send: Any = import_module("langgraph.types").Send
    builder = graphs.StateGraph(
        _state({"items": list[int], "results": Annotated[list[str], operator.add], "seen": int})
    )

    async def plan(_state: Any) -> dict[str, Any]:
        return {"items": list(range(BRANCHES))}

    async def branch(_state: Any) -> dict[str, Any]:
        return {"results": [text()]}

    async def count(state: Any) -> dict[str, Any]:
        return {"seen": len(state["results"])}

    builder.add_node("plan", plan)
    builder.add_node("branch", branch)
    builder.add_node("count", count)
    builder.add_edge(graphs.START, "plan")
    builder.add_conditional_edges(
        "plan", lambda state: [send("branch", {"item": item}) for item in state["items"]], ["branch"]
    )
    builder.add_edge("branch", "count")
    builder.add_edge("count", graphs.END)
    return builder


def _state(fields: dict[str, Any]) -> Any:
    make: Any = TypedDict
    return make("State", fields, total=False)


async def langgraph(workload: str, path: Path, measured: Callable[[Run], Awaitable[None]]) -> None:
    saver: Any = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
    builder = _their_fan_out() if workload == "fan_out" else _their_chain(workload == "chain")
    async with saver.from_conn_string(str(path)) as checkpointer:
        await checkpointer.setup()
        graph = builder.compile(checkpointer=checkpointer)

        async def run(number: int) -> int:
            options = {"configurable": {"thread_id": f"run-{number}"}, "max_concurrency": None, "recursion_limit": 100}
            state = await graph.ainvoke({}, options, durability="sync")
            return int(state.get("seen", NODES))

        await measured(run)


ENGINES = {"perdure": perdure, "langgraph": langgraph}


def _bytes(path: Path) -> int:
    """The size of a file once its log is written back."""
    with closing(sqlite3.connect(path)) as connection:
        pages, size = (connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


async def measure(folder: Path, engine: str, workload: str, *, runs: int, in_flight: int) -> Figures:
    """So many runs, so many of them at once, after a few that are not counted."""
    path = folder / "bench.db"
    expected = BRANCHES if workload == "fan_out" else NODES
    took, grown = 0.0, 0

    async def measured(run: Run) -> None:
        nonlocal took, grown
        numbers = iter(range(runs + in_flight))

        async def caller() -> None:
            for number in numbers:
                if await run(number) != expected:
                    raise SystemExit(f"{engine}: run {number} of {workload} has not seen all results")
                if number < in_flight:
                    return

        await asyncio.gather(*[caller() for _ in range(in_flight)])
        before = _bytes(path)
        began = time.perf_counter()
        await asyncio.gather(*[caller() for _ in range(in_flight)])
        took = time.perf_counter() - began
        grown = _bytes(path) - before

    await ENGINES[engine](workload, path, measured)
    return {"runs_per_s": runs / took, "bytes_per_run": grown / runs}


def measure_apart(engine: str, workload: str, *, runs: int, in_flight: int) -> Figures:
    command = [sys.executable, "-m", "bench.langgraph", "--one", engine, workload, str(runs), str(in_flight)]
    # Only tracing to elsewhere would be asked for there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH", "LANGCHAIN"))}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{workload} of {engine} failed, see above")
    return decode(done.stdout, type=Figures)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.langgraph", description="Graphs beside LangGraph.")
    parser.add_argument("--one", nargs=4, metavar=("ENGINE", "WORKLOAD", "RUNS", "IN_FLIGHT"), help="one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.one is not None:
        engine, workload, runs, in_flight = options.one
        with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
            measuring = measure(Path(folder), engine, workload, runs=int(runs), in_flight=int(in_flight))
            sys.stdout.buffer.write(encode(loop.run(measuring)))
        return
    for workload in WORKLOADS:
        runs = 20 if workload == "fan_out" else 100
        for in_flight in (1, 20):
            found: dict[str, list[Figures]] = {name: [] for name in ENGINES}
            for _ in range(options.rounds):
                for name in ENGINES:
                    found[name].append(measure_apart(name, workload, runs=runs, in_flight=in_flight))
            _say(workload, in_flight, found["perdure"], found["langgraph"])


def _say(workload: str, in_flight: int, ours: list[Figures], theirs: list[Figures]) -> None:
    one, other = medians(ours), medians(theirs)
    faster, smaller = (paired(ours, theirs, name) for name in ("runs_per_s", "bytes_per_run"))
    verdict = "ok" if faster >= THROUGHPUT_MIN and smaller <= BYTES_MAX else "missed"
    print(
        f"{workload:8} {in_flight:>3} in flight: "
        f"runs/s {one['runs_per_s']:,.1f}, LangGraph {other['runs_per_s']:,.1f}, "
        f"{faster:.1f} times; bytes/run {one['bytes_per_run']:,.0f}, LangGraph {other['bytes_per_run']:,.0f}, "
        f"{smaller:.2f} of it: {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    main()
