"""The shop, killed in the middle. Takes orders in a child process, kills it with SIGKILL, starts it again, and proves
from outside that every order was completed and that no step ran again after its entry was committed.

Exits with 1 if that is not so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from display import Display, display
from evidence import Seen, Verdict, by_name, judge, look
from worker import ORDERS

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0  # for a slow machine; the whole demo takes some seconds


class Shop:
    """A fresh store, the witness's file beside it, and at most one worker process."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "shop.db"
        self._log = folder / "witness.log"
        self._errors = folder / "worker.err"
        self._starts = 0

    def look(self) -> Seen:
        return look(self.store, self._log)

    def open(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        command = [sys.executable, str(HERE / "worker.py"), str(self.store), str(self._log), str(self._starts)]
        with self._errors.open("wb") as errors:
            return subprocess.Popen(command, stderr=errors)

    def complaint(self) -> str:
        return self._errors.read_text(errors="replace")


def run_until_killed(shop: Shop, show: Display) -> Seen:
    """Let the first process work until many orders are under way, and kill it between two instructions."""
    entries = sum(len(order.items) + 4 for order in ORDERS)
    with shop.open() as worker:
        try:
            show.say(f"process 1 (pid {worker.pid}) takes {len(ORDERS)} orders")
            give_up_at = time.monotonic() + PATIENCE_S
            seen = shop.look()
            while not seen.completed or len(seen.committed) < entries / 2 or len(seen.running) < 3:
                if worker.poll() is not None or time.monotonic() > give_up_at:
                    raise SystemExit(f"the worker did not get far enough to be killed\n{shop.complaint()}")
                show.show(seen)
                time.sleep(0.02)
                seen = shop.look()
        finally:
            worker.kill()
    at_kill = shop.look()
    show.show(at_kill)
    show.say(
        f"killed process 1 with SIGKILL: {len(at_kill.committed)} entries are committed, {at_kill.completed} orders"
        f" completed, {len(at_kill.running)} steps were running"
    )
    return at_kill


def run_to_the_end(shop: Shop, show: Display) -> Seen:
    """Start it again on the same file and wait until it is done."""
    with shop.open() as worker:
        try:
            show.say(f"process 2 (pid {worker.pid}) goes on from the same file")
            give_up_at = time.monotonic() + PATIENCE_S
            while worker.poll() is None:
                if time.monotonic() > give_up_at:
                    raise SystemExit(f"the orders were not completed within {PATIENCE_S:.0f} s\n{shop.complaint()}")
                show.show(shop.look())
                time.sleep(0.02)
        finally:
            worker.kill()
    at_end = shop.look()
    show.show(at_end)
    if worker.returncode != 0:
        show.say(f"process 2 failed:\n{shop.complaint()}")
    return at_end


def report(verdict: Verdict) -> str:
    again = f"{len(verdict.repeated)} steps ran again: the kill caught them before their commit"
    findings = [
        (verdict.completed == verdict.orders, f"{verdict.completed} of {verdict.orders} orders completed"),
        (not verdict.broken, f"{len(verdict.broken)} steps ran again after their entry was committed"),
        (verdict.repeated == verdict.caught, f"{again} ({by_name(verdict.repeated)})"),
    ]
    lines = [f"{'✓' if good else '✗'} {finding}" for good, finding in findings]
    lines.append(f"  {verdict.attempts} times a step's code began to run, each noted in a file outside the store")
    return "\n".join(lines)


NEXT = """
What to try next:
  read the workflow           examples/shop/shop.py
  kill one yourself           {python} examples/hello.py   (Ctrl-\\ while it sleeps, then start it again)
  see what the runs did       {python} -m perdure runs list --store sqlite:///{store}
  … or in the tables          sqlite3 {store} "select run_id, position, name, value from journal"
  look at it in a browser     {python} -m perdure serve --store sqlite:///{store}
  … at a livelier shop        make demo-ui
  see how fast it is          make bench
"""


def python() -> str:
    """This interpreter, as one would type it here."""
    here, full = Path.cwd(), Path(sys.executable)
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(full)


def main() -> int:
    shop = Shop(Path(tempfile.mkdtemp(prefix="perdure-demo-")))
    with display(ORDERS) as show:
        at_kill = run_until_killed(shop, show)
        time.sleep(1)  # so that whoever watches sees that nothing moves
        at_end = run_to_the_end(shop, show)
    verdict = judge(len(ORDERS), at_kill, at_end)
    print(f"\n{report(verdict)}")
    print(NEXT.format(store=shop.store, python=python()))
    return 0 if verdict.kept else 1


if __name__ == "__main__":
    sys.exit(main())
