"""Tools for tests, for users and for Perdure itself. The library itself does not import them.

- `Environment` is an engine on virtual time that can be killed and restarted.
- `run_with_crashes` runs a scenario once for each of its commits. Each time, the process dies at that commit.
- `assert_exactly_once` does the same, and counts the writes of transactional steps.
- `explore` runs a workflow with every crash, failure and cancellation. It reports steps that are not idempotent, code
  that is not deterministic, and compensations that do not undo. `perdure.testing.fixtures` has it as a fixture for
  pytest.
- `YieldPoints` makes two racing ops meet in a chosen order.
- `check_store` checks the invariants of everything in a store.
- `perdure.testing.conformance` has the tests that every store must pass.
- `perdure.testing.simulate` runs several engines in one process, on a simulated database. A seed determines its faults.
"""

from perdure.testing.clock import VirtualClock
from perdure.testing.crashes import CrashReport, assert_exactly_once, fresh_urls, run_with_crashes
from perdure.testing.environment import Environment
from perdure.testing.explore import Exploration, Finding, StepBroke, explore
from perdure.testing.faults import CRASH_POINTS, Fault, FaultyStore, Point
from perdure.testing.invariants import check_store
from perdure.testing.proxy import StoreProxy
from perdure.testing.readiness import assert_readiness_agrees
from perdure.testing.ready_runs import ready
from perdure.testing.yield_points import YieldPoints

__all__ = [
    "CRASH_POINTS",
    "CrashReport",
    "Environment",
    "Exploration",
    "Fault",
    "FaultyStore",
    "Finding",
    "Point",
    "StepBroke",
    "StoreProxy",
    "VirtualClock",
    "YieldPoints",
    "assert_exactly_once",
    "assert_readiness_agrees",
    "check_store",
    "explore",
    "fresh_urls",
    "ready",
    "run_with_crashes",
]
