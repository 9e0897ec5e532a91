"""The records of a kind, each in its newest version, or all versions of one record."""

from __future__ import annotations

from typing import Final

from perdure.dashboard.page import Page, Shown, Visit
from perdure.errors import RecordNotFound

_LIMIT: Final = 50


async def show(visit: Visit) -> Shown:
    kind, after = visit.asked("kind").strip(), visit.asked("after")
    name, version = visit.asked("name"), visit.asked("version")
    found = await visit.client.records.list(kind, after=after or None, limit=_LIMIT) if kind else []
    return {
        "title": f"Records: {kind}" if kind else "Records",
        "kind": kind,
        "records": found,
        "after": after,
        "next": found[-1].name if len(found) == _LIMIT else None,
        "record": await _record(visit, kind, name, version) if kind and name else None,
    }


async def _record(visit: Visit, kind: str, name: str, version: str) -> object:
    number = int(version) if version.isascii() and version.isdigit() and 0 < len(version) < 16 else None
    try:
        return await visit.client.records.get(kind, name, number or None)
    except RecordNotFound:
        return None


page = Page(name="records", path="/records", title="Records", show=show)
