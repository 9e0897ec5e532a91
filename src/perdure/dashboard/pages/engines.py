"""Engines: list the live engines with their workflows, and the live clients."""

from __future__ import annotations

from perdure.dashboard.page import Page, Shown, Visit


async def show(visit: Visit) -> Shown:
    found = await visit.client.engines.list()
    return {
        "title": "Engines",
        "engines": [one for one in found if one.workflows],
        "clients": [one for one in found if not one.workflows],
    }


page = Page(name="engines", path="/engines", title="Engines", show=show)
