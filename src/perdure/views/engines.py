"""Engines and clients that share a store, and the code that each engine has."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from perdure.kernel.cooperation import VERSION_SEPARATOR, read_version
from perdure.kernel.rows import Engine
from perdure.views.values import shown_time


class EngineView(Struct, frozen=True, kw_only=True):
    """An engine or a client that is alive.

    `workflows` has the code of the engine. For a workflow it has the name and the version, and for an operation the
    name and the topic. It is empty for a client. `versions` has the name, the topic and the version of each operation
    that has a version.
    """

    id: str
    host: str
    pid: int
    workflows: list[tuple[str, str]]
    started_at: datetime
    versions: list[tuple[str, str, str]] = []


def engine_view(engine: Engine) -> EngineView:
    """Return the view of an engine's row."""
    return EngineView(
        id=engine.id,
        host=engine.host,
        pid=engine.pid,
        workflows=[*dict.fromkeys((name, read_version(version)[0]) for name, version in engine.workflows)],
        versions=[(name, *read_version(version)) for name, version in engine.workflows if VERSION_SEPARATOR in version],
        started_at=shown_time(engine.started_at),
    )


__all__ = ["EngineView", "engine_view"]
