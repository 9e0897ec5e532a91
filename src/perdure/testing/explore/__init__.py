"""Explore a workflow: run it with every crash, every order of its steps' ends, every failure and every cancellation.

`explore` finds steps that are not idempotent, code that is not deterministic, results that differ after a crash, and
compensations that do not undo. The search is in explorer.py, one trial in trials.py, the wrapped bodies of steps in
bodies.py, the fakes of services in world.py, and the findings in findings.py.
"""

from perdure.testing.explore.bodies import StepBroke
from perdure.testing.explore.explorer import explore
from perdure.testing.explore.findings import Exploration, Finding

__all__ = ["Exploration", "Finding", "StepBroke", "explore"]
