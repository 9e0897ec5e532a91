"""Explore a workflow: run it with every crash, every order of its steps' ends, every failure and every cancellation.

`explore` finds steps that are not idempotent, code that is not deterministic, results that differ after a crash, and
compensations that do not undo. explorer.py has the search, trials.py one trial, bodies.py the wrapped bodies of steps,
world.py the fakes of services, and findings.py the findings.
"""

from perdure.testing.explore.bodies import StepBroke
from perdure.testing.explore.explorer import explore
from perdure.testing.explore.findings import Exploration, Finding

__all__ = ["Exploration", "Finding", "StepBroke", "explore"]
