"""`python -m tests.mutants`: try every mutant, print what found it, and end with 1 if one survived."""

from __future__ import annotations

import argparse
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from tests.mutants.scratch import Outcome, Scratch
from tests.mutants.table import SUITES, DoesNotFit, Find, Mutant, load

LIMIT_S = 600.0


class Result(Struct, kw_only=True):
    """What became of one mutant."""

    mutant: Mutant
    found_by: Find | None = None
    outcome: Outcome = Outcome()
    problems: list[str] = []  # suites that could not be run, or that fail without the mutant, too
    took_s: float = 0.0

    def __str__(self) -> str:
        name = f"{self.mutant.name:44} {self.mutant.noun:12}"
        if self.found_by is None:
            return "\n    ".join([f"{name} SURVIVED after {self.took_s:.0f} s", *self.problems])
        return f"{name} {self.found_by.suite:12} {self.took_s:6.1f} s  {self.outcome.where}"


class Trials:
    """Tries mutants, each in a scratch copy. A find counts only if the same suite passes without the mutant."""

    def __init__(self, limit_s: float, *, is_searching: bool) -> None:
        self._limit_s = limit_s
        self._is_searching = is_searching
        self._lock = threading.Lock()
        self._sound: dict[str, Outcome] = {}  # what suites say without a mutant

    def trial(self, scratch: Scratch, mutant: Mutant, finds: Sequence[Find]) -> Result:
        """Try one suite after the other, until one finds the mutant."""
        result = Result(mutant=mutant, problems=[])
        for find in finds:
            try:
                with scratch.mutated(mutant):
                    outcome = scratch.tried(find, self._limit_s, is_searching=self._is_searching)
            except DoesNotFit as error:
                result.problems.append(str(error))
                return result
            result.took_s += outcome.took_s
            if outcome.trouble:
                result.problems.append(f"{find}: {outcome.trouble}")
            elif outcome.where:
                found = Find(find.suite, outcome.where)
                if not (without := self._without(scratch, found)).where and not without.trouble:
                    result.found_by, result.outcome = found, outcome
                    return result
                result.problems.append(f"{found} fails without the mutant, too: {without.text or without.trouble}")
        return result

    def _without(self, scratch: Scratch, find: Find) -> Outcome:
        with self._lock:
            known = self._sound.get(str(find))
        if known is None:
            known = scratch.tried(find, self._limit_s, is_searching=False)
            with self._lock:
                self._sound[str(find)] = known
        return known


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every mutant was found, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--noun", action="append", default=[], help="the mutants of this noun; may be repeated")
    parser.add_argument("--suite", choices=SUITES, help="try this suite alone")
    parser.add_argument("--find", metavar="SUITE: WHERE", help="try this instead of what the table says")
    parser.add_argument("--list", action="store_true", help="print the table, and try nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/reliability.md")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds for one suite (default: {LIMIT_S:.0f})")
    parser.add_argument(
        "--search", action="store_true", help="look at 3,000 seeds if the one in the table finds nothing"
    )
    given = parser.parse_args(arguments)
    mutants = [one for one in load() if not given.noun or one.noun in given.noun]
    if unknown := set(given.only) - {one.name for one in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    mutants = [one for one in mutants if not given.only or one.name in given.only]
    if given.markdown:
        for mutant in mutants:
            show(mutant.markdown)
        return 0
    if given.list:
        for mutant in mutants:
            show(f"{mutant.name:44} {mutant.noun:12} {mutant.breaks}")
        return 0
    todo = deque((mutant, _finds(mutant, given.suite, given.find)) for mutant in mutants)
    results = _all_tried(todo, given.jobs, Trials(given.limit, is_searching=given.search))
    survivors = [one for one in results if one.found_by is None]
    show(f"{len(results) - len(survivors)} of {len(results)} found")
    for one in survivors:
        show(f"survived: {one.mutant.name}: {one.mutant.breaks}")
    return 1 if survivors else 0


def _finds(mutant: Mutant, suite: str | None, find: str | None) -> list[Find]:
    if find:
        return [Find.parse(find)]
    return [one for one in mutant.found_by if suite in (None, one.suite)]


def _all_tried(todo: deque[tuple[Mutant, list[Find]]], jobs: int, trials: Trials) -> list[Result]:
    results: list[Result] = []

    def work() -> None:
        scratch = Scratch()
        try:
            while todo:
                try:
                    mutant, finds = todo.popleft()
                except IndexError:
                    return
                if finds or not mutant.found_by:
                    results.append(result := trials.trial(scratch, mutant, finds))
                    show(str(result))
        finally:
            scratch.remove()

    with ThreadPoolExecutor(jobs) as pool:
        for worker in [pool.submit(work) for _ in range(jobs)]:
            worker.result()
    return results


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
