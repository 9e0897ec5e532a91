"""Whatever a read is asked for, the caller is told which argument is wrong, and the engine can write as before.

A value that the driver cannot encode once left its connection in the middle of a transaction, and the next commit
stopped the engine for good.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure import Engine, RunHandle, RunSelection
from perdure.cooperation import RootHandle
from perdure.errors import Misuse
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.api.surface import facets, methods
from tests.engine.world import steps

TEXTS: list[Any] = ["\ud800", "nul\0", "", "x" * 501, "x" * 10**6, 5, b"r-1", ["r-1"], object()]
NUMBERS: list[Any] = [2**63, -(2**63) - 1, 2**200, -1, 0, 1.5, float("nan"), "1", None, True, b"1"]
TIMES: list[Any] = [datetime(2026, 1, 1), datetime.max, "2026-01-01", 0, 2**63, timedelta(1)]  # noqa: DTZ001, DTZ901
OTHERS: list[Any] = [{"k": 5}, {5: "v"}, {"\ud800": "v"}, {"k": "nul\0"}, [5], [None], "\ud800", 2**63, object()]
HOSTILE = [*TEXTS, *NUMBERS, *TIMES, *OTHERS]

# Every public method that only reads, with arguments that are fine: verbs, and those of facets and handles.
READS: dict[str, dict[str, Any]] = {
    "handle": {"id": "r"},
    "runs.count": {"selection": RunSelection(), "limit": 1},
    "runs.get": {"id": "r"},
    "runs.get_many": {"ids": ["r"]},
    "runs.list": {
        "workflow": "w", "status": "failed", "hold": "blocked", "parent": "p", "tags": {"k": "v"}, "limit": 1,
        "created_from": None, "created_before": None, "cursor": "1:r",
    },
    "runs.tally": {"times": [], "statuses": ["failed"], "limit": 1},
    "runs.timers": {"ids": ["r"]},
    "tasks.get": {"id": "t"},
    "tasks.list": {"queue": "q", "kind": "k", "status": "open", "run": "r", "after": "a", "limit": 1},
    "artifacts.get": {"name": "a", "version": 1},
    "artifacts.list": {"name": "a", "run": "r", "type": "t", "staged": True, "after": "a", "limit": 1},
    "artifacts.open": {"id": "a"},
    "artifacts.read": {"name": "a", "version": 1},
    "records.get": {"kind": "k", "name": "n", "version": 1},
    "records.list": {"kind": "k", "after": "a", "limit": 1},
    "events.pending": {"name": "n", "to": "r", "limit": 1},
    "dead_letters.get": {"id": "d"},
    "dead_letters.list": {"name": "n", "after": "a", "limit": 1},
    "topics.message": {"id": "r"},
    "topics.root": {"id": "r"},
    "engines.overdue": {"by": timedelta(1), "limit": 1},
    "audit.export": {"since": None, "until": None},
    "run.drawing": {"form": "svg"},
    "run.graph_events": {"after": 0, "limit": 1},
    "run.hierarchy": {"runs_max": 1},
    "run.published": {"key": "k"},
    "run.stream": {"name": "n", "after": 0, "follow": False},
    "run.tree": {"runs_max": 1},
    "root.hierarchy": {"runs_max": 1},
    "root.returned": {"name": "n", "type": str, "handler": "h"},
    "root.tree": {"runs_max": 1},
}  # fmt: skip
WRITES = {
    "emit", "open", "prepare_start", "recover", "run", "send", "send_many", "shutdown", "start", "start_many",
    "runs.cancel", "runs.pause", "runs.resume", "runs.retry",
    "tasks.answer", "tasks.claim", "tasks.fail", "tasks.heartbeat", "tasks.release",
    "records.put", "events.purge", "dead_letters.remove", "dead_letters.replay",
    "topics.cancel_token", "topics.complete", "topics.complete_rollback", "topics.fail", "topics.register",
    "topics.retire", "engines.mark_dead",
    "run.cancel", "run.pause", "run.resume", "run.retry", "run.roll_back", "run.send", "run.update",
    "root.cancel", "root.roll_back",
}  # fmt: skip
# Those that ask for nothing but what their handle or facet is there for, or need no store.
PLAIN = {
    "until_stopped", "topics.handlers", "engines.list", "engines.stats",
    "run.audit", "run.definition", "run.history", "run.result", "run.status", "run.streams", "run.tokens", "run.view",
    "run.waits", "root.finished",
}  # fmt: skip
SERVERS_OWN = "credentials."  # The HTTP server checks what it hands to them.


def test_every_public_method_is_known_to_read_or_to_write() -> None:
    owners = {"run": RunHandle, "root": RootHandle, **facets()}
    names = {f"{owner}.{name}" for owner, kind in owners.items() for name in methods(kind)} | set(methods(Engine))
    assert {name for name in names if not name.startswith(SERVERS_OWN)} == set(READS) | WRITES | PLAIN


def found(engine: Engine, name: str) -> Callable[..., Any]:
    """The method of this name: the engine's, a facet's, or a handle's."""
    owner, _, method = name.rpartition(".")
    owners: dict[str, Any] = {
        "": engine,
        "run": engine.handle("r"),
        "root": RootHandle(engine.session, "r", "m", ("r",)),
        **{facet: getattr(engine, facet) for facet in facets()},
    }
    function: Callable[..., Any] = getattr(owners[owner], method)
    return function


async def read(method: Callable[..., Any], arguments: dict[str, Any]) -> None:
    answer = method(**arguments)
    if isinstance(answer, AsyncIterator):
        async for _ in answer:
            break
    elif inspect.isawaitable(answer):
        await answer


@pytest.mark.parametrize("name", READS)
async def test_a_read_with_a_hostile_argument_is_refused_and_the_engine_writes_as_before(
    name: str, source: StoreSource
) -> None:
    async with Environment([steps], source, autojump_s=None) as env:
        method = found(env.engine, name)
        fine = READS[name]
        assert set(fine) <= set(inspect.signature(method).parameters)
        for argument in fine:
            for value in HOSTILE:
                try:
                    await read(method, {**fine, argument: value})
                except Misuse:
                    pass
                except Exception as error:  # noqa: BLE001 - all of them are told
                    pytest.fail(f"{name}({argument}={value!r:.60}) raises {error!r}")
            assert await env.engine.run(steps()) == []
