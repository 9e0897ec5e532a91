"""`python -m tests.chaos --store postgres --minutes 20 [--seed 4711]`: ends with 1 if anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.storm import storm, tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    tell(f"chaos on {given.store} for {given.minutes} minutes, seed {given.seed}")
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    report = asyncio.run(storm(given.store, folder, given.seed, minutes=given.minutes))
    tell(report)
    if report.violations:
        tell(f"what processes said is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
