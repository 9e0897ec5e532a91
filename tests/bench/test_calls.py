"""How many calls a step and a hierarchy take, on any machine: what grows here makes every run slower."""

from __future__ import annotations

from bench import calls

# In memory: a tenth more than with Python 3.11 and the loop of asyncio. Who needs more says why in docs/performance.md.
CALLS_MAX = {"calls_per_step": 225.0, "calls_per_step_alone": 156.0, "calls_per_hierarchy": 5_900.0}


async def test_steps_and_hierarchies_take_no_more_calls_than_they_did() -> None:
    figures = await calls.measure(None, runs=100, hierarchies=100, in_flight=50)
    assert {name: value for name, value in figures.items() if value > CALLS_MAX[name]} == {}
    assert all(value > 0 for value in figures.values())
