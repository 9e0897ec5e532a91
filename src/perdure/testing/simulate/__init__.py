"""The simulator. It runs several engines in one process, on a simulated database, with a seeded scheduler and virtual
time.

    simulation = Simulation(seed=7)
    a, b = simulation.member("a", [checkout]), simulation.member("b", [checkout])

    async def scenario() -> None:
        await a.open()
        await b.open()
        await a.call(lambda engine: engine.start(checkout("o-17"), id="o-17"))
        a.pause()
        ...

    simulation.run(scenario())

Engines can be paused for longer than their lease, woken, killed and restarted. Calls to the database are delayed, fail,
or have an unknown outcome. `Weather` has the probabilities. The same seed gives the same history: `simulation.trace`.

`python -m perdure.testing.simulate` runs Perdure's own scenarios (see scenario.py). They look for anything that is
lost, duplicated or stuck.
"""

from perdure.testing.simulate.database import SimulatedDatabase
from perdure.testing.simulate.loop import Process, SimulatedClock, SimulatedLoop, Stuck
from perdure.testing.simulate.network import FINE, Network, Weather
from perdure.testing.simulate.simulation import Member, Simulation
from perdure.testing.simulate.store import SimulatedStore
from perdure.testing.simulate.transactions import Bug

__all__ = [
    "FINE",
    "Bug",
    "Member",
    "Network",
    "Process",
    "SimulatedClock",
    "SimulatedDatabase",
    "SimulatedLoop",
    "SimulatedStore",
    "Simulation",
    "Stuck",
    "Weather",
]
