"""Reads with arguments that no database can hold. The reads may fail, but after that the store must still be able to
write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from perdure.ports import ArtifactFilter, Offer, RunFilter, TaskFilter
from perdure.testing.conformance.base import Rules, a_run, insert

HOSTILE: Final[list[Any]] = ["\ud800", "nul\0", 2**63, -(2**63) - 1, 2**64, 5, 1.5, b"\xff", None, [], object()]

READS: Final[dict[str, Callable[[Any, Any], Awaitable[Any]]]] = {
    "archived": lambda store, bad: store.archived(bad),
    "artifact": lambda store, bad: store.artifact(id=bad),
    "artifact_of_a_version": lambda store, bad: store.artifact(name="n", version=bad),
    "artifacts": lambda store, bad: store.artifacts(ArtifactFilter(name=bad)),
    "artifacts_after": lambda store, bad: store.artifacts(ArtifactFilter(after=bad)),
    "audit": lambda store, bad: store.audit(bad),
    "audits": lambda store, bad: store.audits([bad]),
    "changed_runs": lambda store, bad: store.changed_runs(since=bad),
    "children": lambda store, bad: store.children([bad]),
    "chunk": lambda store, bad: store.chunk(bad, 0),
    "chunk_number": lambda store, bad: store.chunk("a", bad),
    "count": lambda store, bad: store.count(RunFilter(workflow=bad)),
    "dead_letter": lambda store, bad: store.dead_letter(bad),
    "dead_letters": lambda store, bad: store.dead_letters(name=bad),
    "dead_letters_after": lambda store, bad: store.dead_letters(after=bad),
    "due_runs": lambda store, bad: store.due_runs(offers=[Offer("checkout", "", "f")], before=bad, limit=10),
    "due_runs_of": lambda store, bad: store.due_runs(offers=[Offer(bad, "", "f")], before=1, limit=10),
    "emitted": lambda store, bad: store.emitted(bad),
    "events": lambda store, bad: store.events(name=bad),
    "events_at": lambda store, bad: store.events_at([("m", bad)]),
    "events_limit": lambda store, bad: store.events(limit=bad),
    "events_of": lambda store, bad: store.events(run_id=bad),
    "get": lambda store, bad: store.get([bad]),
    "hierarchy": lambda store, bad: store.hierarchy(bad),
    "journal": lambda store, bad: store.journal(bad),
    "journals": lambda store, bad: store.journals([bad]),
    "list": lambda store, bad: store.list(RunFilter(workflow=bad)),
    "list_by_tags": lambda store, bad: store.list(RunFilter(tags={"a": bad})),
    "list_limit": lambda store, bad: store.list(RunFilter(limit=bad)),
    "load": lambda store, bad: store.load([bad]),
    "load_tasks": lambda store, bad: store.load_tasks([bad]),
    "load_whole": lambda store, bad: store.load_whole([bad]),
    "look": lambda store, bad: store.look(engine_id="e-1", offers=[], at=bad),
    "mail": lambda store, bad: store.mail("e-1", bad),
    "published": lambda store, bad: store.published("r", bad),
    "record": lambda store, bad: store.record(bad, "n"),
    "record_of_a_version": lambda store, bad: store.record("k", "n", bad),
    "record_versions": lambda store, bad: store.record_versions(since=bad),
    "records": lambda store, bad: store.records("k", after=bad),
    "scopes": lambda store, bad: store.scopes([bad]),
    "sent": lambda store, bad: store.sent([bad]),
    "session": lambda store, bad: store.session(bad),
    "stream": lambda store, bad: store.stream("r", "s", after=bad, limit=1),
    "streams": lambda store, bad: store.streams(bad),
    "tally": lambda store, bad: store.tally([(bad, 1, 2)], 5),
    "tasks": lambda store, bad: store.tasks(TaskFilter(queue=bad)),
    "tasks_after": lambda store, bad: store.tasks(TaskFilter(after=bad)),
    "token": lambda store, bad: store.token(bad),
    "token_versions": lambda store, bad: store.token_versions(after=("t", bad)),
    "tokens": lambda store, bad: store.tokens(after=bad),
}


class HostileReadRules(Rules):
    @pytest.mark.parametrize("name", READS)
    async def test_a_read_with_a_hostile_argument_leaves_the_store_fit_to_read_and_to_write(self, name: str) -> None:
        async with self.author() as author:
            for number, value in enumerate(HOSTILE):
                # Engines check arguments before they read, so any error of the store is acceptable.
                with suppress(Exception):
                    await READS[name](author.store, value)
                await author.commit(insert(a_run(f"r-{number}")))
                assert set(await author.store.get([f"r-{number}"])) == {f"r-{number}"}

    async def test_reads_with_hostile_arguments_do_no_harm_to_others_at_the_same_time(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()))

            async def hostile(name: str, value: Any) -> None:
                with suppress(Exception):
                    await READS[name](author.store, value)

            async def good(number: int) -> None:
                assert set(await author.store.get(["r-1"])) == {"r-1"}
                assert [run.id for run in await author.store.list(RunFilter(workflow=f"none-{number}"))] == []

            for number, name in enumerate(READS):
                await asyncio.gather(*(hostile(name, value) for value in HOSTILE), good(number), author.commit())
