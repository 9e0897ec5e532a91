"""One measurement in a process of its own, on a fresh file: `python -m bench.measure steps '{"runs": 100, …}'`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec.json import decode, encode

from bench import loop
from bench.figures import Figures

TIMEOUT_S = 300


def measure(name: str, sizes: dict[str, int]) -> Figures:
    """Start a process for one workload and wait for its figures."""
    command = [sys.executable, "-m", "bench.measure", name, encode(sizes).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S, env=os.environ)
    if done.returncode != 0:
        raise SystemExit(f"the workload {name!r} failed, see above")
    return decode(done.stdout, type=Figures)


def main(name: str, sizes: str) -> None:
    from bench.workloads import MEASURES

    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        figures = loop.run(MEASURES[name](Path(folder), **decode(sizes, type=dict[str, int])))
    sys.stdout.buffer.write(encode(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
