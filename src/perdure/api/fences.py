"""The fence behind a cancellation: the caller gets its reply only when no further step of the cancelled runs can begin.

The cancellation is stored before the fence is used. The commit of the cancellation reaches the runs of this engine, and
leaves mail for the runs of other engines. From these runs, the cancellation is passed on to their children. The fence
sends a question to the owner of each run that may have unread mail, and waits for the reply. The reply proves that the
owner has read the earlier mail, because an engine handles mail in the order of sending. If this process dies before the
replies arrive, the mail stays in the store, and the cancellation still takes effect.

The owner's commit contains the reply. So another process may read the reply before the owner knows that its commit
succeeded. That is why the owner starts no step of the run in the time from just before that commit until it has
stopped the run: see `Coordinator.stopping`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from perdure.errors import EngineStopped, StoreUnavailable
from perdure.kernel import ops
from perdure.kernel.operation_notices import ASK, FENCE
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.session import Session

_AT_WORK: Final = (Status.SUSPENDED, Status.RUNNING)

Levels = list[list[Run]]  # runs level by level, from the top down


class Fences:
    """Makes a caller wait until the owners of cancelled runs have replied."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = session.caller_store
        self._coordinator = session.coordinator

    async def of_hierarchies(self, ids: Sequence[str]) -> None:
        """Wait until every engine knows that its runs of these hierarchies must roll back, and has stopped the
        functions and graphs that these runs have called. `ids` are ids of runs or root emissions. Each was asked to
        roll back, or its owner has mail that asks for the rollback. Raises EngineStopped, StoreError.
        """
        asked: set[str] = set()
        levels = await self._levels(ids) if ids else []
        while levels:
            me = self._coordinator.engine.id
            elsewhere: dict[str, None] = {}
            for run in (run for level in levels for run in level):
                # A run of this engine gets mail if its parent belongs to another engine, and that mail may be unread. A
                # run without an owner may have had an owner that released the run before reading its mail.
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
        """Wait until every engine has ended all runs below a run that was cancelled.

        Raises EngineStopped, StoreError.
        """
        await self._pass(await self._below([run_id]), {run_id}, set())

    async def _below(self, ids: Sequence[str]) -> list[Run]:
        """Return the children of these runs, including stopped children: the runs below a stopped run may still be
        running.
        """
        return [one.run for one in await self._store.children(ids, stopped=True)]

    async def _levels(self, ids: Sequence[str]) -> Levels:
        """Return the runs with these ids, and all runs below them that are active or were stopped, level by level."""
        tops = {*ids}
        level = [*(one.run for one in (await self._store.load(ids)).values()), *await self._below(ids)]
        levels: Levels = []
        while level:
            levels.append(level)
            level = await self._below([run.id for run in level if run.id not in tops])
        return levels

    async def _pass(self, level: list[Run], far: set[str], operations: Container[str]) -> None:
        """Ask the owners of the runs, level by level. Once a run has replied, it starts no more children, and the mail
        for its children is in the store. `far` has the runs about which another engine may have decided. Their children
        may have mail. A run of an operation is asked only if its id is in `operations`.
        """
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
        notices = [ops.Notify(run_id=run_id, at=now, kind=kind) for run_id in run_ids]
        for reply in await self._coordinator.submit_batch(notices):
            if isinstance(reply, (EngineStopped, StoreUnavailable)):
                raise reply


def _above_calls(levels: Levels) -> set[str]:
    """Return the ids of the runs that have functions or graphs somewhere below them. For a hierarchy that has only
    operations, the result is empty.
    """
    found: set[str] = set()
    for level in reversed(levels):
        found.update(run.parent_id or "" for run in level if run.model != "operation" or run.id in found)
    return found


__all__ = ["Fences"]
