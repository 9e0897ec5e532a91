"""Revival of operations' runs. It finds the operation of a run, and makes the run in memory from its rows.

A run that cannot be revived is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from perdure.coordinator.turns import in_turns
from perdure.errors import EngineBug
from perdure.kernel.pieces import Pieces
from perdure.kernel.runs import Run
from perdure.models.common.deployment import deployed
from perdure.models.common.host_parts import HostParts
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.holds import Holds
from perdure.models.cooperation.live_run import LiveOperation, revived
from perdure.models.cooperation.machine import next_move
from perdure.models.cooperation.moves import Wait
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.models.cooperation.versions import Operations, lacking

log = logging.getLogger("perdure")

READ_AT_ONCE: Final = 64  # the number of runs that are read at once


class Revival:
    """Makes runs in memory from their rows. It does not keep these runs."""

    def __init__(self, parts: HostParts, rows: RowCodec, operations: Operations, holds: Holds) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._rows = rows
        self._operations = operations
        self._holds = holds

    def revived(
        self, run: Run, scopes: StoredScopes, hierarchy: Hierarchy, *, is_staged: bool
    ) -> Pieces[LiveOperation | None]:
        """Return a run in memory. Return None if the run cannot go on; then the run is held.

        `is_staged` says that an outcome of the run's code is committed but not in rows yet.
        """
        try:
            return (yield from self._live(run, scopes, hierarchy))
        except Exception as error:
            log.error("run %s cannot go on", run.id, exc_info=error)
            operation = self._operation_of(run, scopes, hierarchy)
            self._holds.set(
                run.id,
                run.claim,
                f"the run cannot be revived from its rows: {error!r}",
                fingerprint=deployed(operation) if operation is not None else "",
                view=hierarchy.view(scopes.runs[run.id], self._clock.now()) if run.id in scopes.runs else None,
                strategy=None if operation is None else operation.strategy,
                is_staged=is_staged,
            )
            return None

    async def waiting(self, runs: Sequence[Run]) -> set[str]:
        """Return the ids of those runs that wait for other runs or for a time. No engine has them in memory. Raises
        StoreError.
        """
        found: set[str] = set()
        for start in range(0, len(runs), READ_AT_ONCE):
            part = runs[start : start + READ_AT_ONCE]
            scopes = await in_turns(self._rows.read_in_pieces(await self._store.scopes([run.id for run in part])))
            hierarchy = await in_turns(scopes.hierarchy_in_pieces())
            for run in part:
                if await in_turns(self._waits(run, scopes, hierarchy)):
                    found.add(run.id)
            await asyncio.sleep(0)
        return found

    def _waits(self, run: Run, scopes: StoredScopes, hierarchy: Hierarchy) -> Pieces[bool]:
        with suppress(Exception):  # The engine that takes the run reports what is wrong with it.
            is_here = self._operation_of(run, scopes, hierarchy) is not None
            live = (yield from self._live(run, scopes, hierarchy)) if is_here else None
            if live is not None:
                yield from live.folded_in_pieces()
                return isinstance(next_move(live.plan, live.view(self._clock.now()), live.progress), Wait)
        return False

    def _operation_of(self, run: Run, scopes: StoredScopes, hierarchy: Hierarchy) -> Operation[Any] | None:
        """Return a run's operation, by the topic of its message, its name, and the version that began the run."""
        new = scopes.runs.get(run.id)
        if new is None or (message := hierarchy.messages.get(new.message_id)) is None:
            return None
        is_begun = any(row.seq for row in hierarchy.own(new.lineage))
        return self._operations.of(message.topic, run.workflow, run.workflow_version, is_begun=is_begun)

    def _live(self, run: Run, scopes: StoredScopes, hierarchy: Hierarchy) -> Pieces[LiveOperation | None]:
        if run.id not in scopes.runs:
            raise EngineBug(f"the rows of run {run.id!r} are gone")
        new = scopes.runs[run.id]
        operation = self._operation_of(run, scopes, hierarchy)
        if operation is None:
            # Any engine that has the code takes the run, even if the fingerprint of the code differs.
            reason = lacking(hierarchy.messages[new.message_id].topic, run.workflow, run.workflow_version)
            self._holds.set(run.id, run.claim, reason, fingerprint="none")
            return None
        payload = hierarchy.messages[new.message_id].payload
        view = yield from hierarchy.view_in_pieces(new, self._clock.now())
        return revived(operation, run, view, payload, hierarchy)
