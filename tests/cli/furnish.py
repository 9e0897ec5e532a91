"""Fills a store with runs of every kind, events, dead letters, tasks and artifacts."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from perdure import Engine, NamedEvent
from perdure.errors import RunFailed
from tests.cli import kiosk


async def furnish(url: str) -> None:
    async with Engine(url, workflows=kiosk.ALL) as engine:
        await engine.run(kiosk.greet("ada"), id="ada", tags={"tenant": "acme"})
        for name in ("boom-1", "boom-2"):
            with suppress(RunFailed):
                await engine.run(kiosk.boom(name), id=name)
        await engine.start(kiosk.pays("o-17"), id="o-17")
        await engine.start(kiosk.asks("o-18"), id="asking")
        await engine.run(kiosk.family(2), id="family")
        await engine.run(kiosk.report("one"), id="report-1")
        await engine.run(kiosk.report("two"), id="report-2")
        await engine.run(kiosk.counts(), id="counting")
        await engine.start(kiosk.ends_unread(), id="unread")
        for number in (1, 2):
            await engine.send(kiosk.Note(number=number), to="unread")
        await engine.send(NamedEvent("go"), to="unread")
        await engine.handle("unread").result()
        await engine.send(NamedEvent("news", {"text": "\x1b[31mred"}))
        while (await engine.handle("o-17").status(), await engine.handle("asking").status()) != ("suspended",) * 2:
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(furnish(sys.argv[1]))
