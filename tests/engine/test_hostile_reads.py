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

from perdure import Engine
from perdure.errors import Misuse
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.world import steps

TEXTS: list[Any] = ["\ud800", "nul\0", "", "x" * 501, "x" * 10**6, 5, b"r-1", ["r-1"], object()]
NUMBERS: list[Any] = [2**63, -(2**63) - 1, 2**200, -1, 0, 1.5, float("nan"), "1", None, True, b"1"]
TIMES: list[Any] = [datetime(2026, 1, 1), datetime.max, "2026-01-01", 0, 2**63, timedelta(1)]  # noqa: DTZ001, DTZ901
OTHERS: list[Any] = [{"k": 5}, {5: "v"}, {"\ud800": "v"}, {"k": "nul\0"}, [5], [None], "\ud800", 2**63, object()]
HOSTILE = [*TEXTS, *NUMBERS, *TIMES, *OTHERS]

# Every public method that only reads, with arguments that are fine.
READS: dict[str, dict[str, Any]] = {
    "artifact": {"name": "a", "version": 1},
    "artifacts": {"name": "a", "run": "r", "type": "t", "staged": True, "after": "a", "limit": 1},
    "audit": {"id": "r"},
    "dead_letter": {"id": "d"},
    "dead_letters": {"name": "n", "after": "a", "limit": 1},
    "definition": {"id": "r"},
    "drawing": {"id": "r"},
    "events": {"name": "n", "to": "r", "limit": 1},
    "get": {"id": "r"},
    "get_many": {"ids": ["r"]},
    "export_audit": {"since": None, "until": None},
    "hierarchy": {"id": "r", "runs_max": 1},
    "history": {"id": "r"},
    "message": {"id": "r"},
    "open_artifact": {"id": "a"},
    "overdue": {"by": timedelta(1), "limit": 1},
    "published": {"id": "r", "key": "k"},
    "read_artifact": {"name": "a", "version": 1},
    "record": {"kind": "k", "name": "n", "version": 1},
    "records": {"kind": "k", "after": "a", "limit": 1},
    "runs": {
        "workflow": "w", "status": "failed", "hold": "blocked", "parent": "p", "tags": {"k": "v"}, "limit": 1,
        "created_from": None, "created_before": None, "cursor": "1:r",
    },
    "stream": {"id": "r", "name": "n", "after": 0, "follow": False},
    "streams": {"id": "r"},
    "tally": {"times": [], "statuses": ["failed"], "limit": 1},
    "task": {"id": "t"},
    "tasks": {"queue": "q", "kind": "k", "status": "open", "run": "r", "after": "a", "limit": 1},
    "timers": {"ids": ["r"]},
    "tokens": {"id": "r"},
    "tree": {"id": "r", "runs_max": 1},
    "waits": {"id": "r"},
}  # fmt: skip
WRITES = {
    "answer", "beat_task", "cancel", "cancel_scope", "cancel_token", "claim_tasks", "complete_handler",
    "complete_rollback", "emit", "fail_handler", "fail_task", "hold_back", "insert_start", "kill", "mark_dead_engines",
    "open", "pause", "prepare_start", "purge",
    "put_record", "recover", "register_handler", "release_task", "remove_dead_letter", "replay_dead_letter",
    "request_cancel", "resume",
    "retire_handler", "retry", "roll_back", "run", "send", "send_many", "shutdown", "start", "update",
}  # fmt: skip
# Those that ask for nothing, need no store, or are for handles and models inside.
PLAIN = {
    "credentials",
    "engines", "graph_events", "handle", "handlers", "is_between_steps", "outcome", "quiet", "read_result",
    "root_scopes", "scopes", "stats", "steps_running", "until_stopped", "with_causes",
}  # fmt: skip


def test_every_public_method_is_known_to_read_or_to_write() -> None:
    names = {name for name in dir(Engine) if not name.startswith("_")}
    assert names == set(READS) | WRITES | PLAIN


async def read(method: Callable[..., Any], arguments: dict[str, Any]) -> None:
    found = method(**arguments)
    if isinstance(found, AsyncIterator):
        async for _ in found:
            break
    elif inspect.isawaitable(found):
        await found


@pytest.mark.parametrize("name", READS)
async def test_a_read_with_a_hostile_argument_is_refused_and_the_engine_writes_as_before(
    name: str, source: StoreSource
) -> None:
    async with Environment([steps], source, autojump_s=None) as env:
        method = getattr(env.engine, name)
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
