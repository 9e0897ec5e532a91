"""Tools for tests, for users as for Perdure itself. Nothing in the library imports them.

`Environment` is an engine on virtual time that can be killed and restarted; `run_with_crashes` kills a scenario at each
of its commits, and `assert_exactly_once` counts what transactional steps have written then; `YieldPoints` has two ops
that race meet in a chosen order; `check_store` looks for anything that must never be stored.
`perdure.testing.conformance` has the tests that every store must pass.
`perdure.testing.simulate` has several engines in one process, on a simulated database with faults drawn from a seed.
"""

from perdure.testing.clock import VirtualClock
from perdure.testing.crashes import CrashReport, assert_exactly_once, fresh_urls, run_with_crashes
from perdure.testing.environment import Environment
from perdure.testing.faults import CRASH_POINTS, Fault, FaultyStore, Point
from perdure.testing.invariants import check_store
from perdure.testing.proxy import StoreProxy
from perdure.testing.readiness import assert_readiness_agrees
from perdure.testing.yield_points import YieldPoints

__all__ = [
    "CRASH_POINTS",
    "CrashReport",
    "Environment",
    "Fault",
    "FaultyStore",
    "Point",
    "StoreProxy",
    "VirtualClock",
    "YieldPoints",
    "assert_exactly_once",
    "assert_readiness_agrees",
    "check_store",
    "fresh_urls",
    "run_with_crashes",
]
