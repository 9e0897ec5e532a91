"""W9: from the launch of the interpreter to the first result on an empty store, and how long the import takes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figures

# Run as a file of its own, as a user's program would be.
FIRST = """
import asyncio, sys
from perdure import Engine, step, workflow

@step
async def small() -> int:
    return 1

@workflow
async def one_step() -> int:
    return await small()

async def main() -> None:
    async with Engine("sqlite:///" + sys.argv[1]) as engine:
        print(await engine.run(one_step()), flush=True)

asyncio.run(main())
"""


def _until_first_line(*arguments: str) -> float:
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
    if process.returncode != 0 or not line:
        raise SystemExit(f"{arguments} failed")
    return took


def _measure(folder: Path) -> Figures:
    program = folder / "first.py"
    program.write_text(FIRST)
    first = _until_first_line(str(program), str(folder / "first.db"))
    empty = _until_first_line("-c", "print(1)")
    imported = _until_first_line("-c", "import perdure; print(1)")
    return {"first_result_s": first, "import_s": imported - empty}


async def measure(folder: Path) -> Figures:
    return await asyncio.to_thread(_measure, folder)
