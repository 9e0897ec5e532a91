"""`python -m tests.mutants.seeds graphs --from 0 --seeds 3000`: ends with 1 at the first seed that finds a problem.

A seed that takes too long has found one, too: an engine that goes round in circles at one moment of virtual time never
lets the simulator's own limit pass.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final

from perdure.testing.simulate.hierarchies import simulate_hierarchies
from perdure.testing.simulate.mix import MIXES
from perdure.testing.simulate.scenario import Report, simulate

__all__ = ["LIMIT_S", "SCENARIOS", "main"]

LIMIT_S: Final = 60  # for one seed; a usual one takes a tenth of a second
SCENARIOS: Final[dict[str, Callable[[int], Report]]] = {
    **{name: partial(simulate, mix=mix) for name, mix in MIXES.items()},
    "hierarchies": simulate_hierarchies,
}


class TakesTooLong(BaseException):
    """No `Exception`: the simulator must not report it as a problem of an engine."""


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; print the first that finds a problem, and return 1. Return 0 if none does."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.seeds", description=__doc__)
    parser.add_argument("mix", choices=SCENARIOS)
    parser.add_argument("--from", type=int, dest="first", default=0)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, _stop)
    for seed in range(given.first, given.first + given.seeds):
        if problem := _problem(given.mix, seed):
            sys.stdout.write(f"seed {seed}: {problem}\n")
            return 1
    return 0


def _problem(mix: str, seed: int) -> str:
    signal.alarm(LIMIT_S)
    try:
        return SCENARIOS[mix](seed).problem
    except TakesTooLong:
        return f"TakesTooLong: more than {LIMIT_S} s"
    finally:
        signal.alarm(0)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TakesTooLong


if __name__ == "__main__":
    sys.exit(main())
