"""The run reader reads runs of operations: runs that come into memory, and live runs that may have missed a change of
their rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from perdure.coordinator.notices import Outage
from perdure.coordinator.turns import in_turns
from perdure.errors import StoreError
from perdure.kernel.pieces import Pieces
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.operation_parts import OperationParts
from perdure.models.cooperation.revival import READ_AT_ONCE, Revival
from perdure.models.cooperation.row_codec import StoredScopes
from perdure.models.cooperation.step_execution import recall
from perdure.models.cooperation.steps import Steps
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.models.cooperation.token_cancellation import read_scopes
from perdure.ports import Journal

log = logging.getLogger("perdure")

_AGAIN_US: Final = 1_000_000


class ReadListener(Protocol):
    """Goes on with runs that were read."""

    def go_on(self, live: LiveOperation, *, is_loaded: bool = False) -> None:
        """Go on with a run. `is_loaded` says that the run has just come into memory."""
        ...


class Loading:
    """A run that is being read from the store. `notified` is the number of its last notification. If it `is_outdated`,
    the run may have been read before that notification was written.
    """

    __slots__ = ("is_outdated", "notified", "run")

    def __init__(self, run: Run, notified: int) -> None:
        self.run = run
        self.notified = notified
        self.is_outdated = False

    @property
    def claim(self) -> int:
        return self.run.claim


class RunReader:
    """Reads runs in groups, with one query for many runs. If the store fails, it tries the group again."""

    def __init__(self, parts: OperationParts, steps: Steps, listener: ReadListener) -> None:
        engine = parts.engine
        self.loading: Final[dict[str, Loading]] = {}
        self.outage = Outage("runs of operations", engine.coordinator.stats.outages)
        self.joining: Final[set[str]] = set()  # runs that wait for handlers which may have registered meanwhile
        self._store = engine.store
        self._clock = engine.clock
        self._timers = engine.timers
        self._codec = engine.codec
        self._rows = parts.rows
        self._registry = parts.registry
        self._runs = parts.runs
        self._live = parts.runs.by_id
        self._holds = parts.holds
        self._blame = parts.blame
        self._steps = steps
        self._listener = listener
        self._revival = Revival(engine, parts.rows, parts.operations, parts.holds)
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self.waiting = self._revival.waiting

    @property
    def busy(self) -> bool:
        return bool(self.loading) or self._reading is not None

    def load(self, run: Run, notified: int) -> None:
        """Read a run that comes into memory. `notified` is the number of its last notification."""
        self.loading[run.id] = Loading(run, notified)
        self._want(run.id)

    def read_anew(self, live: LiveOperation) -> None:
        """Read the rows of a live run again. Until they are read, the run does not go on."""
        live.is_stale = True
        self._want(live.id)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _want(self, run_id: str) -> None:
        self._wanted[run_id] = None
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="perdure-scopes")

    async def _read(self) -> None:
        at_once = READ_AT_ONCE  # After the reader has found damaged rows, it reads runs one by one until all are read.
        try:
            while self._wanted:
                ids = [self._wanted.popitem(last=False)[0] for _ in range(min(at_once, len(self._wanted)))]
                try:
                    scopes = await read_scopes(self._store, self._rows, ids)
                    journals = await self._journals(ids)
                    await self._load_registry(ids)
                except StoreError as error:
                    self.outage.failed(f"{len(ids)} runs could not be read and are tried again", error)
                    self._timers.after(_AGAIN_US, partial(self._want_again, ids))
                    continue
                except Exception as error:  # noqa: BLE001 - whatever their rows hold, other runs go on
                    at_once = 1
                    if len(ids) > 1:  # Reading the runs one by one shows whose rows are damaged.
                        self._wanted.update(dict.fromkeys(ids))
                    elif (run := self.loading.pop(ids[0], None) or self._live.get(ids[0])) is not None:
                        self._holds.unreadable(ids[0], run.claim, error)
                    continue
                self.outage.worked()
                hierarchy = await in_turns(scopes.hierarchy_in_pieces())
                for run_id in ids:
                    await in_turns(self._found(run_id, scopes, hierarchy, journals.get(run_id)))
                await asyncio.sleep(0)  # Some stores can be read without giving the loop a turn.
        except Exception:
            log.exception("runs of operations could not be read")
        finally:
            self._reading = None

    async def _load_registry(self, ids: Sequence[str]) -> None:
        """Read the registry again if it must be current. This is so if runs are being revived, or if handlers have
        registered.
        """
        if any(run_id in self.loading or run_id in self.joining for run_id in ids):
            self.joining.difference_update(ids)
            await self._registry.load(again=True)

    async def _journals(self, ids: Iterable[str]) -> Mapping[str, Journal]:
        """Return the journals of runs that are being read. A journal has the outcome of the run's code if that outcome
        is committed but not in rows yet. It also has the failed attempts. Runs that have never begun are left out.
        """
        loading = [one.run for run_id in ids if (one := self.loading.get(run_id)) is not None]
        asked = [run.id for run in loading if run.status is not Status.CREATED]
        return await self._store.journals(asked) if asked else {}

    def _want_again(self, ids: Iterable[str]) -> None:
        for run_id in ids:
            if run_id in self.loading or run_id in self._live:
                self._want(run_id)

    def _found(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy, journal: Journal | None) -> Pieces[None]:
        loading = self.loading.get(run_id)
        if loading is None:
            yield from self._found_anew(run_id, scopes, hierarchy)
            return
        if self._is_superseded(loading):
            return
        is_staged = journal is not None and bool(journal.staged)
        live = yield from self._revival.revived(loading.run, scopes, hierarchy, is_staged=is_staged)
        if self._is_superseded(loading):
            return
        del self.loading[run_id]
        if live is None or self._steps.slots.is_closed:
            return
        live.notified = loading.notified
        self._live[run_id] = live
        self._blame.watch(loading.run)
        if journal is not None:
            recall(live, journal, self._codec)
        if loading.is_outdated:
            self.read_anew(live)
        else:
            self._listener.go_on(live, is_loaded=True)
        self._runs.evict()

    def _is_superseded(self, loading: Loading) -> bool:
        """Return whether a run was closed while it was being read, or must be read once more.

        It must be read once more if the rows that were read may be older than the commit that made the read necessary.
        """
        return self.loading.get(loading.run.id) is not loading or loading.run.id in self._wanted

    def _found_anew(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy) -> Pieces[None]:
        if run_id not in self._live or run_id not in scopes.runs:
            return
        view = yield from hierarchy.view_in_pieces(scopes.runs[run_id], self._clock.now())
        live = self._live.get(run_id)
        if live is not None and live.is_stale:
            live.is_stale = run_id in self._wanted
            live.learn(view, hierarchy.values_of(view))
            if not live.is_stale and not self._steps.landings.land(live):
                self._listener.go_on(live)


__all__ = ["ReadListener", "RunReader"]
