"""The number of levels above a function's message. Operations, functions and graphs all count as levels.

A message from outside is at level 1. A message of a function that no other run has called is at level 1 too. A
function's message is the root of a hierarchy of its own. So its context has the number of levels above that root
(ABOVE). All runs of the hierarchy inherit this number. A run's level never changes, so the levels that were found are
kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from perdure.errors import HierarchyTooDeep
from perdure.kernel.lineages import depth_of, read_origin
from perdure.kernel.rules.operations import CALLED
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.cooperation.context import ABOVE, EMPTY, EXEMPT, Context, levels_above
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.scope import allowed_levels
from perdure.ports import Codec, Store

_KNOWN_MAX: Final = 10_000  # the number of runs whose levels are kept


class Levels:
    """Finds the levels of functions and graphs that emit. `lookup` returns runs that are in memory."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        lookup: Callable[[str], Run | None],
        levels_max: int,
    ) -> None:
        self._store = store
        self._rows = RowCodec(codec)
        self._lookup = lookup
        self._levels_max = levels_max
        self._known: OrderedDict[str, int] = OrderedDict()  # level by run id

    async def context_below(self, run_id: str, topic: str) -> Context:
        """Return the context for a run's message. Raises HierarchyTooDeep if the message's handlers would be too many
        levels down. Raises StoreError.
        """
        level = await self._level(run_id)
        if level >= self._levels_max:
            allowed = allowed_levels(self._levels_max, rolling_back=await self._is_undoing(run_id))
            if level >= allowed:
                raise HierarchyTooDeep(
                    f"run {run_id!r} emits on topic {topic!r}, {level + 1:,} levels below the top of its hierarchy, "
                    f"which may have {allowed:,}; operations, functions and graphs count alike. If they call each "
                    "other without end, have one of them stop; if it is to be this deep, set "
                    "Engine(hierarchy_levels_max=…)",
                    level=level + 1,
                    levels_max=allowed,
                )
        return EMPTY.put(ABOVE, level) if level else EMPTY

    async def _level(self, run_id: str) -> int:
        """Return how many levels a run is below the top. This is 0 if no run has called it, or if it was started as
        detached.

        If the run is below the allowed level, counting stops before the top.
        """
        path: list[str] = []
        level = self._known.get(run_id)
        while level is None:
            run = await self._run(run_id)
            if run is None or run.parent_id is None or run.bond == "detached":
                level = 0
            elif run.bond == CALLED:
                level = await self._level_of_call(run)
            elif len(path) > allowed_levels(self._levels_max, rolling_back=True):
                return len(path)
            else:
                path.append(run_id)
                run_id = run.parent_id
                level = self._known.get(run_id)
                continue
            self._keep(run_id, level)
        for below in reversed(path):
            level += 1
            self._keep(below, level)
        return level

    def _keep(self, run_id: str, level: int) -> None:
        self._known[run_id] = level
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def _level_of_call(self, run: Run) -> int:
        """Return the level of a run that an operation has started."""
        _, lineage = read_origin(run.origin)
        return depth_of(lineage) - 1 + levels_above(await self._origin_of_call(run))

    async def _origin_of_call(self, run: Run) -> Context:
        message_id, _ = read_origin(run.origin)
        emitted = await self._store.emitted(message_id)
        return EMPTY if emitted is None else self._rows.read_event(emitted).context or EMPTY

    async def _is_undoing(self, run_id: str) -> bool:
        """Return whether a run undoes work. It is a compensation, or a rollback has started it."""
        run = await self._run(run_id)
        if run is None or run.parent_id is None:
            return False
        if run.bond == CALLED:
            return EXEMPT.name in (await self._origin_of_call(run)).values
        above = await self._run(run.parent_id)
        return above is not None and above.status is Status.ROLLING_BACK

    async def _run(self, run_id: str) -> Run | None:
        if (known := self._lookup(run_id)) is not None:
            return known
        stored = (await self._store.get([run_id])).get(run_id)
        return None if stored is None else stored.run
