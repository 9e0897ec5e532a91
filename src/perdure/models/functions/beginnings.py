"""The first activations of runs, in pieces. A run that asks for ten thousand children needs several turns of the event
loop, and other runs go on between these turns.
"""

from __future__ import annotations

import asyncio

from perdure.kernel.ops import Advance
from perdure.kernel.pieces import Pieces
from perdure.kernel.runs import Run
from perdure.models.functions.activations import Activations
from perdure.models.functions.commands import Commands
from perdure.models.functions.commit_gate import Gate
from perdure.models.functions.runner import LiveRun
from perdure.ports import Clock


class Beginnings:
    """Does the first piece of each run's first activation at once, and one more piece in each later turn of the loop.
    Most runs have one piece.

    Nothing of the run is committed before its first activation has ended, so nothing is handed to the run until then.
    Closing the run ends its first activation.
    """

    def __init__(self, clock: Clock, activations: Activations, gate: Gate) -> None:
        self.open: set[str] = set()  # the ids of runs that take more than one turn
        self._clock = clock
        self._activations = activations
        self._gate = gate

    def take(self, live: LiveRun, run: Run, input: str) -> None:
        """Begin to run a run's code."""
        commands = live.begin(input, run.started_at or run.created_at)
        if commands is None or commands.asks:
            self._go_on(live, live.begin_on(commands, self._clock.now))
        elif commands.end is None and not (commands.timers or commands.outputs) and not live.idle:
            self._gate.release(live, commands)  # The commands are only steps, and everything before them is committed.
        else:
            self._activations.write(live, live.advance(commands, live.time(self._clock.now()), "started"))

    def _go_on(self, live: LiveRun, work: Pieces[Advance | Commands]) -> None:
        """Do one piece now, and the remaining pieces in later turns of the loop."""
        self.open.discard(live.id)
        if live.ended:
            return
        try:
            next(work)
        except StopIteration as done:
            if isinstance(done.value, Advance):
                self._activations.write(live, done.value)
            else:
                self._gate.release(live, done.value)
        except Exception as error:  # noqa: BLE001 - a failure of one run must not affect others
            self._activations.set_aside(live, error)
        else:
            self.open.add(live.id)
            asyncio.get_running_loop().call_soon(self._go_on, live, work)


__all__ = ["Beginnings"]
