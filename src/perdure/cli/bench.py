"""`perdure bench`: measure in a few seconds how fast this machine and this store are."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from perdure.cli.commands import command
from perdure.cli.formats import cell
from perdure.cli.settings import file_of, not_in_memory, shown
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.engine import Engine

_IN_FLIGHT = 100
_BLOCK = b"\0" * 4096


class Figure(Struct, frozen=True, kw_only=True):
    """One measurement: the time that one operation takes (p50, p99), or the number of operations per second."""

    name: str
    count: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    per_s: float | None = None


def add_to(app: typer.Typer) -> None:
    @command(app, "bench")
    async def bench(
        terminal: Terminal,
        seconds: Annotated[
            float, typer.Option("--seconds", min=0.05, max=60, help="How long each measurement takes.")
        ] = 1.0,
        in_store: Annotated[
            bool, typer.Option("--in-store", help="Measure in the store itself. The runs stay there.")
        ] = False,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    ) -> None:
        """Measure how fast this machine and the store are.

        The command measures writes to the disk, runs of one step, and steps with a hundred runs in flight. It uses a
        temporary SQLite file beside the store, or in the current folder if no store is named, and removes the file
        afterwards. With --in-store it uses the store itself, of any kind. Then the runs stay in the store, with the tag
        perdure=bench."""
        url = terminal.settings.store if in_store else None
        if url is not None:
            not_in_memory(url)
            terminal.confirm(f"leave some thousands of runs in {shown(url)}?", yes=yes)
        folder = _folder(terminal)
        place = nullcontext(None) if url else tempfile.TemporaryDirectory(prefix=".perdure-bench-", dir=folder)
        with place as made:
            figures = await _measured(url or f"sqlite:///{Path(made or '') / 'bench.db'}", folder, seconds)
        where = shown(url) if url else f"a temporary SQLite file in {folder}"
        if terminal.as_json:
            terminal.document({"store": where, "figures": figures})
            return
        terminal.print_text(where)
        rows = [(one.name, *[_rounded(value) for value in (one.p50_ms, one.p99_ms, one.per_s)]) for one in figures]
        terminal.table(("what", "p50 ms", "p99 ms", "per second"), rows, empty="")


def _folder(terminal: Terminal) -> Path:
    """Return a folder on the disk of the store. This is the folder of the SQLite file, or else the current folder."""
    file = file_of(terminal.settings.store) if terminal.settings.names_store else None
    return file.resolve().parent if file is not None and file.resolve().parent.is_dir() else Path.cwd()


async def _measured(url: str, folder: Path, seconds: float) -> list[Figure]:
    from perdure import Engine, step, workflow

    @step
    async def touch() -> int:
        return 1

    @workflow(name="perdure.bench.one")
    async def one_step() -> int:
        return await touch()

    @workflow(name="perdure.bench.ten")
    async def ten_steps() -> int:
        return sum([await touch() for _ in range(10)])

    tags = {"perdure": "bench"}
    figures = [_synced(folder, seconds / 4)]
    async with Engine(url, workflows=[one_step, ten_steps]) as engine:

        async def ended(call: Callable[[], Awaitable[int]], engine: Engine = engine) -> None:
            await engine.run(call(), tags=tags)  # type: ignore[arg-type]

        await ended(one_step)
        figures.append(await _latency("a run of one step", lambda: ended(one_step), seconds))
        figures.append(await _throughput("steps, 100 runs in flight", lambda: ended(ten_steps), 10, seconds))
    return figures


def _synced(folder: Path, seconds: float) -> Figure:
    """Measure how long the disk takes to make a block durable. No commit can be faster."""
    took: list[float] = []
    with tempfile.NamedTemporaryFile(prefix=".perdure-bench-", dir=folder) as file:
        give_up = time.perf_counter() + seconds
        while time.perf_counter() < give_up or not took:
            began = time.perf_counter()
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return _figure("a write to the disk (fsync)", took)


async def _latency(name: str, once: Callable[[], Awaitable[None]], seconds: float) -> Figure:
    took: list[float] = []
    give_up = time.perf_counter() + seconds
    while time.perf_counter() < give_up or not took:
        began = time.perf_counter()
        await once()
        took.append(time.perf_counter() - began)
    return _figure(name, took)


async def _throughput(name: str, once: Callable[[], Awaitable[None]], each: int, seconds: float) -> Figure:
    began = time.perf_counter()
    count = 0

    async def one_after_the_other() -> None:
        nonlocal count
        while time.perf_counter() < began + seconds:
            await once()
            count += each

    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(one_after_the_other())
    return Figure(name=name, count=count, per_s=count / (time.perf_counter() - began))


def _figure(name: str, took: list[float]) -> Figure:
    took.sort()
    p50, p99 = took[len(took) // 2] * 1000, took[min(len(took) - 1, len(took) * 99 // 100)] * 1000
    return Figure(name=name, count=len(took), p50_ms=p50, p99_ms=p99, per_s=len(took) / sum(took))


def _rounded(value: float | None) -> str:
    return "" if value is None else cell(round(value)) if value >= 100 else f"{value:.2f}"


__all__ = ["Figure", "add_to"]
