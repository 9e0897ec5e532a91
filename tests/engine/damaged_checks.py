"""What must hold in a store with one damaged cell: everybody else goes on, lists can be read, and the cell is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure import Engine, NamedEvent
from perdure.errors import PerdureError, RowDamaged
from perdure.kernel.status import FINISHED
from tests.engine.damaged_world import ALL, Order, orders, short

VICTIMS = ["victim-wait", "victim-sleep", "victim-ask", "victim-parent", "victim-boom", "victim-short"]


def opened(source: Any) -> Engine:
    return Engine(source, workflows=ALL, poll_s=0.05)


async def go_on(engine: Engine) -> None:
    """Runs that have nothing to do with the damage end as they would have."""
    assert await engine.run(short()) == "seen short"
    await engine.send(NamedEvent("go"), to="other-wait")
    assert await engine.handle("other-wait").result() == "went"
    (asked,) = await engine.tasks.list(queue="desk", run="other-ask")
    await engine.tasks.answer(asked.id, None)
    assert await engine.handle("other-ask").result() == "answered"
    (child,) = (await engine.handle("other-parent").tree()).children
    await engine.send(NamedEvent("go"), to=child.run.id)
    assert await engine.handle("other-parent").result() == "went"
    root = await engine.emit(orders, Order(sku="other"), id="other-message")  # It gives the one that is there.
    (person,) = (await engine.handle(root.run_ids[0]).tree()).children
    await engine.topics.complete(person.run.id)
    await root.finished()


async def read_lists(engine: Engine) -> str:
    """Every list there is, and what they show of damage."""
    shown: list[Any] = []
    seen: list[str] = []
    cursor = None
    while True:
        page = await engine.runs.list(limit=7, cursor=cursor)
        seen += [run.id for run in page.runs]
        shown += [run.hold for run in page.runs if run.hold is not None]
        if (cursor := page.cursor) is None:
            break
    assert len(seen) == len(set(seen)) >= 20
    for status in ("suspended", "succeeded", "failed", "running"):
        await engine.runs.list(status=status)
    await engine.runs.list(tags={"who": "other"})
    await engine.runs.list(workflow="waits")
    await engine.runs.list(hold="blocked")
    shown += await engine.tasks.list()
    shown += await engine.artifacts.list(staged=True)
    shown += await engine.records.list("prompt")
    shown += await engine.events.pending()
    shown += await engine.events.pending(to="victim-wait")
    shown += await engine.dead_letters.list()
    shown += await engine.engines.list()
    await engine.engines.overdue()
    await engine.topics.handlers()
    return repr(shown)


async def read_victims(engine: Engine, ids: Sequence[str] = VICTIMS) -> str:
    """Every view of single runs that may be damaged: each is given, or names the damage. What was said of it."""

    async def stream(id: str) -> list[Any]:
        streams = [engine.handle(id).stream(name, follow=False) for name in ("log", "words")]
        return [[item async for item in one] for one in streams]

    def asked(name: str) -> Callable[[str], Awaitable[Any]]:
        return lambda id: getattr(engine.handle(id), name)()

    names = ("history", "audit", "waits", "tree", "published", "streams")
    views: list[Callable[[str], Awaitable[Any]]] = [engine.runs.get, *map(asked, names), stream]
    said = [await _said(view, id) for id in ids for view in views]
    said += [await _said(asked("hierarchy"), run.id) for run in await _of_operations(engine)]
    said += [await _said(lambda name: engine.records.get("prompt", name), name) for name in ("victim", "other")]
    said += [
        await _said(lambda id: engine.artifacts.read(id=id), one.id) for one in await engine.artifacts.list(staged=True)
    ]
    return " ".join(said)


async def _said(view: Callable[[str], Awaitable[Any]], id: str) -> str:
    try:
        return repr(await view(id))
    except RowDamaged as damage:
        return str(damage)
    except PerdureError as error:
        if "NotFound" not in type(error).__name__ and "is not what was staged" not in str(error):
            raise
        return ""


async def _of_operations(engine: Engine) -> list[Any]:
    return [run for run in (await engine.runs.list(limit=100)).runs if run.model == "operation"]


async def wake_victims(engine: Engine, turns_max: int = 500) -> dict[str, str]:
    """Give runs that may be damaged what they wait for; those that neither go on nor are held, with their status."""
    for id in VICTIMS:
        try:
            await engine.send(NamedEvent("go"), to=id)
        except PerdureError:
            continue
    left: dict[str, str] = {}
    for _ in range(turns_max):
        views = [await engine.runs.get(id) for id in ("victim-wait", "victim-boom", "victim-short")]
        left = {
            view.id: view.status
            for view in views
            if view is not None and view.status not in FINISHED and view.hold is None
        }
        if not left:
            break
        await asyncio.sleep(0.002)
    return left
