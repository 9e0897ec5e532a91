"""Checks at the moment in which the body of a step begins in a simulated process: may it begin, here and now?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.testing.simulate.loop import process_name
from perdure.testing.simulate.simulation import Simulation

__all__ = ["StepChecks"]

Place = tuple[str, str]  # run id, position


class StepChecks:
    """Watches the steps of a scenario's runs. `wrong` collects the problems.

    An engine begins a step only if it owns the run and was not marked dead, and if the step has no entry yet. In a run
    that does one thing after the other, all earlier steps must have an entry. Stored attempts count. At most
    `steps_max` steps of a process, and `at_once[run id]` steps of a run, are under way at once.
    """

    def __init__(self, simulation: Simulation, steps_max: int) -> None:
        self.wrong: list[str] = []
        self.sequential: set[str] = set()  # runs that do one thing after the other, in each of their branches
        self.at_once: dict[str, int] = {}
        self._simulation = simulation
        self._steps_max = steps_max
        self._begun: dict[str, set[str]] = {}
        self._running: dict[str, dict[Place, asyncio.Task[None] | None]] = {}  # by process

    def started(self, run_id: str, position: str, attempt: int) -> Callable[[], object]:
        """Check a step that begins. Return a function to call when it ends."""
        self._simulation.note(f"step {run_id}/{position} starts, attempt {attempt}")
        self.wrong += [
            f"step {position} of run {run_id!r} {problem}" for problem in self._problems(run_id, position, attempt)
        ]
        self._begun.setdefault(run_id, set()).add(position)
        running = self._running.setdefault(process_name.get(), {})
        running[run_id, position] = asyncio.current_task()
        self.wrong += self._crowds(run_id, running)
        return lambda: running.pop((run_id, position), None)

    def _problems(self, run_id: str, position: str, attempt: int) -> list[str]:
        database = self._simulation.database
        memory = database.memory
        owner = memory.engines.get(memory.runs[run_id].run.owner or "")
        is_own = owner is not None and owner.alive and database.processes.get(owner.id) == process_name.get()
        found: list[str] = [] if is_own else ["was started by an engine that does not own the run"]
        entries = memory.journal.get(run_id, {}).values()
        done = {entry.position for entry in entries}
        if position in done and is_own:
            found.append("was started after its entry was committed")
        stored = [wait.attempts for wait in memory.tables.waits_of(run_id) if wait.position == position]
        if is_own and any(attempt <= attempts for attempts in stored):
            found.append(f"begins attempt {attempt} after {max(stored)} attempts")
        if run_id in self.sequential:
            archived = [entry for entry in memory.archive.get(run_id, {}).values() if entry.failure is None]
            if any((entry.kind, entry.position) == ("step", position) for entry in archived):
                found.append("runs again after a retry, although it had succeeded")
            if early := sorted(self._before(run_id, position) - done):
                found.append(f"was started before the entries of {early} were committed")
        return found

    def _before(self, run_id: str, position: str) -> set[str]:
        """Return the steps of the same branch that began before this one in the order of the code."""
        branch, _, number = position.rpartition(".")
        places = [one.rpartition(".") for one in self._begun.get(run_id, ())]
        return {f"{one}{dot}{n}" for one, dot, n in places if one == branch and int(n) < int(number)}

    def _crowds(self, run_id: str, running: dict[Place, asyncio.Task[None] | None]) -> list[str]:
        # A step that was given up has no slot any more, and ends in its next turn.
        here = [place for place, task in running.items() if task is None or not task.cancelling()]
        found: list[str] = []
        if len(here) > self._steps_max:
            found.append(f"{len(here)} steps run at once in {process_name.get()}, and {self._steps_max} may")
        of_run = sum(one == run_id for one, _ in here)
        if of_run > self.at_once.get(run_id, of_run):
            found.append(f"{of_run} steps of run {run_id!r} run at once, and {self.at_once[run_id]} may")
        return found
