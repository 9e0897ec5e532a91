"""`python -m perdure.testing.simulate --seeds 1000 --from 1` runs seeds, and stops at the first seed that fails."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from perdure.testing.simulate.focus import FOCUS
from perdure.testing.simulate.mix import MIXES
from perdure.testing.simulate.scenario import simulate
from perdure.testing.simulate.transactions import Bug

_TAIL = 60
_EVERY_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all seeds passed, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many to run (default: 500)")
    parser.add_argument("--from", type=int, dest="first", help="the first one; drawn at random unless given")
    parser.add_argument("--bug", choices=[bug.value for bug in Bug], action="append", default=[], help="to be found")
    parser.add_argument("--mix", choices=MIXES, default="usual", help="what scenarios are made of (default: usual)")
    parser.add_argument("--tail", type=int, default=_TAIL, help="how many lines of the trace to show (0: all)")
    given = parser.parse_args(arguments)
    first: int = secrets.randbelow(2**31) if given.first is None else given.first
    bugs = [Bug(bug) for bug in given.bug]
    show(f"seeds {first} to {first + given.seeds - 1}")
    began = reported = time.monotonic()
    for done, seed in enumerate(range(first, first + given.seeds), start=1):
        report = simulate(seed, bugs=bugs, mix=FOCUS[bugs[0]] if bugs else MIXES[given.mix])
        if report.problem:
            show("\n".join(report.trace[-given.tail :]))
            show(f"\nseed {seed} after {done - 1} good ones: {report.problem}\n")
            options = "".join(f" --bug {bug}" for bug in bugs) or (
                f" --mix {given.mix}" if given.mix != "usual" else ""
            )
            show(f"run it again: python -m perdure.testing.simulate --seeds 1 --from {seed} --tail 0{options}")
            return 1
        if (now := time.monotonic()) - reported >= _EVERY_S:
            reported = now
            show(f"{done} of {given.seeds} done, {1000 * (now - began) / done:.0f} ms each")
    show(f"{given.seeds} seeds went well, {1000 * (time.monotonic() - began) / max(1, given.seeds):.0f} ms each")
    return 0


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
