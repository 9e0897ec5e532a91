"""The list of tasks, by status and queue."""

from __future__ import annotations

from typing import Final

from perdure.dashboard.page import Page, Shown, Visit

_LIMIT: Final = 50


async def show(visit: Visit) -> Shown:
    status = visit.asked("status")
    after = visit.asked("after")
    is_known = status in ("claimed", "answered", "withdrawn")
    found = await visit.client.tasks.list(
        status=status if is_known else "open",  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        queue=visit.asked("queue") or None,
        after=after or None,
        limit=_LIMIT,
    )
    return {
        "title": "Tasks",
        "status": status if is_known else "open",
        "statuses": ("open", "claimed", "answered", "withdrawn"),
        "queue": visit.asked("queue"),
        "tasks": found,
        "after": after,
        "next": found[-1].id if len(found) == _LIMIT else None,
    }


page = Page(name="tasks", path="/tasks", title="Tasks", show=show)
