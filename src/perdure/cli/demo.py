"""`perdure demo`: kill a process in the middle of its work, and let another process complete the work."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.terminal import Terminal, rich_table

if TYPE_CHECKING:
    from rich.live import Live

    from perdure.engine import AnyClient

_PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.05


class Report(Struct, frozen=True, kw_only=True):
    """The result of the demo. `repeated` steps were running when the process was killed, and ran again. `broken` steps
    ran again although their results were stored. There must be none.
    """

    store: str
    orders: int
    completed: int
    done_at_kill: int
    repeated: int
    broken: int

    @property
    def is_kept(self) -> bool:
        return self.completed == self.orders and not self.broken


def add_to(app: typer.Typer) -> None:
    @command(app, "demo")
    async def demo(terminal: Terminal) -> int:
        """Show in a few seconds what durable means.

        The demo kills a process that handles orders with SIGKILL. Another process then completes the orders. The demo
        leaves its store in a temporary folder, so that you can look at it."""
        report = await _play(terminal, Path(tempfile.mkdtemp(prefix="perdure-demo-")))
        if terminal.as_json:
            terminal.document(report)
            return Code.DONE if report.is_kept else Code.FAILED
        terminal.print_text(
            f"{_mark(report.completed == report.orders)} {report.completed} of {report.orders} orders completed"
        )
        terminal.print_text(f"{_mark(not report.broken)} {report.broken} steps ran again although they were done")
        terminal.print_text(f"  {report.repeated} steps ran again: the kill caught them at work, before they were done")
        terminal.print_lines(
            [
                "",
                "look around:",
                f"  perdure runs list --store {report.store}",
                f"  perdure runs history order-01 --store {report.store}",
                "your own: perdure new shop",
            ]
        )
        return Code.DONE if report.is_kept else Code.FAILED


def _mark(is_good: bool) -> str:
    return "✓" if is_good else "✗"


async def _play(terminal: Terminal, folder: Path) -> Report:
    from perdure.cli.demo_orders import ORDERS, STEPS
    from perdure.client import Client
    from perdure.upgrade import upgrade

    url = f"sqlite:///{folder / 'demo.db'}"
    notes = folder / "notes.txt"
    notes.touch()
    await upgrade(url)
    async with Client(url) as client:
        with terminal.live() if terminal.is_tty else nullcontext() as live:
            async with _worker(url, notes) as first:
                terminal.print_text(f"process {first.pid} handles {ORDERS} orders of {len(STEPS)} steps each")
                await _until_half(client, first, live)
                first.kill()  # The process cannot react to SIGKILL.
                await first.wait()
            done = await _done(client)
            terminal.print_text(
                f"killed process {first.pid} with SIGKILL: {len(done)} of {ORDERS * len(STEPS)} steps were done"
            )
            async with _worker(url, notes) as second:
                terminal.print_text(f"process {second.pid} continues with the same file")
                await _until_end(client, second, live)
            await _show(live, client)
        runs = (await client.runs.list(workflow="perdure.demo.order", limit=1000)).runs
    began = [line.split() for line in notes.read_text().splitlines()]
    by_first = {(run, name) for pid, run, name in began if int(pid) == first.pid}
    by_second = {(run, name) for pid, run, name in began if int(pid) == second.pid}
    return Report(
        store=url,
        orders=ORDERS,
        completed=sum(run.status == "succeeded" for run in runs),
        done_at_kill=len(done),
        repeated=len(by_first & by_second - done),
        broken=len(by_second & done),
    )


@asynccontextmanager
async def _worker(url: str, notes: Path) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perdure.cli.demo_orders",
        url,
        env={**os.environ, "PERDURE_DEMO_NOTES": str(notes)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _done(client: AnyClient) -> set[tuple[str, str]]:
    """Return the steps whose results are stored, as pairs of a run and a step."""
    runs = (await client.runs.list(workflow="perdure.demo.order", limit=1000)).runs
    histories = [(run.id, await client.handle(run.id).history()) for run in runs]
    return {(id, entry.name) for id, history in histories for entry in history.journal if entry.kind == "step"}


async def _until_half(client: AnyClient, worker: Process, live: Live | None) -> None:
    from perdure.cli.demo_orders import ORDERS, STEPS

    try:
        async with asyncio.timeout(_PATIENCE_S):
            while len(await _done(client)) < ORDERS * len(STEPS) * 0.4:
                if worker.returncode is not None:
                    raise await _stopped(worker)
                await _show(live, client)
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise Refusal("this machine is too slow for the demo", code=Code.FAILED, kind="too_slow") from None


async def _until_end(client: AnyClient, worker: Process, live: Live | None) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while worker.returncode is None:
                await _show(live, client)
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise Refusal("this machine is too slow for the demo", code=Code.FAILED, kind="too_slow") from None
    if worker.returncode:
        raise await _stopped(worker)


async def _stopped(worker: Process) -> Refusal:
    _, errors = await worker.communicate()
    return Refusal(f"a process of the demo failed:\n{errors.decode(errors='replace')}", code=Code.FAILED, kind="failed")


async def _show(live: Live | None, client: AnyClient) -> None:
    """Show the orders, and which steps of each order are done."""
    if live is None:
        return
    from perdure.cli.demo_orders import STEPS

    runs = (await client.runs.list(workflow="perdure.demo.order", limit=1000)).runs
    done = await _done(client)
    rows: list[tuple[Any, ...]] = [
        (run.id, run.status, *["✓" if (run.id, name) in done else "·" for name in STEPS]) for run in reversed(runs)
    ]
    live.update(rich_table(("order", "status", *STEPS), rows), refresh=True)


__all__ = ["Report", "add_to"]
