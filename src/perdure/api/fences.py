"""The fence behind a cancellation: the caller is answered once no further step of the cancelled runs can begin.

A cancellation is stored, and sent on from run to run, before this is asked for. Runs of this engine are reached by the
commit itself. For a run of another engine that commit leaves mail. The fence asks the owner of each run that may have
unread mail, and waits for the answer: an engine decides its mail in the order of sending. If the process dies in
between, the mail is there all the same, and the cancellation counts.

The owner answers with its commit, which others may read before the owner knows of it. The owner's steps are held back
from before that commit until it has stopped the run: see `Coordinator.stopping`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from perdure.errors import EngineStopped, StoreUnavailable
from perdure.kernel import ops
from perdure.kernel.records import Run
from perdure.kernel.rules.operations import ASK, FENCE
from perdure.kernel.status import FINISHED, Status
from perdure.session import Session

_AT_WORK: Final = (Status.SUSPENDED, Status.RUNNING)

Levels = list[list[Run]]  # runs from the top down


class Fences:
    """Waits, for a caller, until the owners of cancelled runs have answered."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.caller_store
        self._coordinator = session.coordinator

    async def of_hierarchies(self, ids: Sequence[str]) -> None:
        """Wait until every engine knows that its runs of these hierarchies are to give up, and has stopped what they
        have called. `ids` are those of runs, or of root emissions, that were asked, or whose owners have mail. Raises
        EngineStopped, StoreError."""
        asked: set[str] = set()
        levels = await self._levels(ids) if ids else []
        while levels:
            me = self._coordinator.engine.id
            elsewhere: dict[str, None] = {}
            for run in (run for level in levels for run in level):
                # A run of this engine below one of another engine's is told by mail, which may be unread. A run without
                # an owner may have had one that released it before it read its mail.
                is_at_work = run.model == "operation" and run.status in _AT_WORK
                if is_at_work and (run.owner != me or run.parent_id in elsewhere):
                    elsewhere[run.id] = None
            if not (new := [run_id for run_id in elsewhere if run_id not in asked]):
                break
            await self._ask(new, ASK)
            asked.update(new)
            levels = await self._levels(ids)
        tops = levels[0] if levels else []
        await self._pass(tops, {*ids} - {run.id for run in tops}, _above_calls(levels))

    async def of_children(self, run_id: str) -> None:
        """Wait until every engine has ended the children of a run that was ended, their children, and so on. Raises
        EngineStopped, StoreError."""
        await self._pass(await self._below([run_id]), {run_id}, set())

    async def _below(self, ids: Sequence[str]) -> list[Run]:
        """Also those that have been stopped: runs below them may not have been."""
        return [one.run for one in await self._store.children(ids, stopped=True)]

    async def _levels(self, ids: Sequence[str]) -> Levels:
        """The runs with these ids, and all below that are active or were stopped."""
        tops = {*ids}
        level = [*(one.run for one in (await self._store.load(ids)).values()), *await self._below(ids)]
        levels: Levels = []
        while level:
            levels.append(level)
            level = await self._below([run.id for run in level if run.id not in tops])
        return levels

    async def _pass(self, level: list[Run], far: set[str], operations: Container[str]) -> None:
        """Ask level by level: what a run is sent is on its way once the run above it has answered, and then it has all
        the children that it will have. `far` are runs that another engine may have decided about, so that mail may be
        left for their children. Of operations only these are asked."""
        me = self._coordinator.engine.id
        while level := [run for run in level if run.model != "operation" or run.id in operations]:
            reached = [run for run in level if run.owner != me or run.parent_id in far]
            if any(run.owner == me for run in reached):
                await self._session.read_mail()
            if asked := [run.id for run in reached if run.owner != me and run.status not in FINISHED]:
                await self._ask(asked, FENCE)
            far.update(run.id for run in reached)
            level = await self._below([run.id for run in level])

    async def _ask(self, run_ids: Sequence[str], kind: str) -> None:
        now = self._session.clock.now()
        tells = [ops.Tell(run_id=run_id, at=now, kind=kind) for run_id in run_ids]
        for reply in await self._coordinator.submit_batch(tells):
            if isinstance(reply, (EngineStopped, StoreUnavailable)):
                raise reply


def _above_calls(levels: Levels) -> set[str]:
    """The runs that have functions or graphs below them. Hierarchies of operations alone need no more."""
    found: set[str] = set()
    for level in reversed(levels):
        found.update(run.parent_id or "" for run in level if run.model != "operation" or run.id in found)
    return found


__all__ = ["Fences"]
