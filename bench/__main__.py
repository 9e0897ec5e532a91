"""All workloads in turn, each in a process of its own, floor and engine one right after the other, and the table.

`--quick` does one small round, to see that it works; its figures say little.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import sqlite3
import sys
import sysconfig
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec.json import encode

import perdure
from bench import loop
from bench.measure import measure
from bench.report import Rounds, summary, table
from bench.workloads import FULL, QUICK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What the engine does, beside the floor.")
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--rounds", type=int, help="how many rounds the medians are of (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append everything measured to this file, as a line")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    count = options.rounds or (1 if options.quick else 5)
    machine = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "loop": loop.NAME,
        "cpus": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
    }
    print("SQLite with synchronous=full;", ", ".join(f"{name} {value}" for name, value in machine.items()))
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        print("others keep this machine busy: expect figures, and ratios too, to be far off")
    options_of_build = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if sys.base_prefix != "/usr" and "--enable-optimizations" not in options_of_build:
        print(
            "this Python was compiled without optimisations: with them the engine would take a fifth to a quarter less"
        )
    # As an installer leaves it: else every process that is launched would compile the package anew.
    compileall.compile_dir(Path(perdure.__file__).parent, quiet=2)
    began = time.monotonic()
    rounds: Rounds = {name: [] for name in sizes}
    for number in range(1, count + 1):
        for name in sizes:
            _progress(f"round {number} of {count}: {name}")
            rounds[name].append(measure(name, sizes[name]))
    _progress("")
    print(table(rounds, judged=not options.quick))
    print(f"medians of {count}, ratios of each pair; {time.monotonic() - began:.0f} s")
    if options.json is not None:
        measured = {"machine": machine, "sizes": sizes, "summary": summary(rounds), "rounds": rounds}
        with options.json.open("ab") as file:
            file.write(encode({"at": datetime.now(UTC), **measured}) + b"\n")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
