"""What must be true after a chaos run, whatever went wrong and when."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
from msgspec import Struct

from perdure.errors import InvariantViolated
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.ports import RunFilter
from perdure.testing import check_store
from tests.chaos import ledger, record
from tests.chaos.callers import id_of, kind_of, number_of
from tests.chaos.fleet import Fleet
from tests.chaos.record import AGAIN, BEGAN, ENDED, LATE, REFUSED, STARTED, UNSEEN, Line
from tests.chaos.witness import EFFECTS
from tests.chaos.work import NOTES, UNDO
from tests.fleet.test_kills import DRIVERS_OWN

_PAGE = 500
# What each workflow or operation has written when it has succeeded.
WRITTEN = {
    "settles": {"note": 1 + NOTES},
    "is_paid": {"note": 1},
    "helps": {"note": 1},
    "has_children": {},
    ledger.WORKFLOW: {},
    "gives_up": {"note": 1, "undo": 1},
    "graph": {"each": NOTES, "last": 1},
    "place": {"reserve": 1, "close": 1},
    "pack": {"take": 1},
    "bill": {"write": 1},
}


class Request(Struct):
    """What a run of an operation was made for."""

    message: str


_request = msgspec.json.Decoder(Request).decode


class Report(Struct):
    """What a chaos run came to."""

    seed: int
    faults: dict[str, int]
    numbers: int
    runs: int
    begun: int
    begun_again: int
    unseen: int
    asked_again: int
    violations: list[str]

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items())) or "no faults"
        lines = [
            f"seed {self.seed}",
            f"faults: {faults}",
            f"{self.numbers} requests of callers made {self.runs} runs; {self.asked_again} times a caller asked again",
            f"{self.begun} bodies of steps began, {self.begun_again} of them again; {self.unseen} were not looked at",
            f"{len(self.violations)} violations",
            *self.violations[:50],
        ]
        return "\n".join(lines)


async def checked(fleet: Fleet, numbers: int, faults: Counter[str], seed: int) -> Report:
    """Compare what processes said with what is stored."""
    lines = record.read(fleet.log)
    runs = await _runs(fleet)
    began = [line for line in lines if line.what == BEGAN]
    violations = [
        *_of_runs(runs),
        *_of_begins(lines),
        *_of_callers(lines, numbers),
        *await _of_effects(fleet, runs),
        *await _of_hierarchies(fleet, runs),
        *await _of_ledger(fleet, runs),
        *_of_messages(fleet),
    ]
    try:
        await check_store(fleet.store)
    except InvariantViolated as violated:
        violations += [f"the store: {line}" for line in str(violated).splitlines()]
    counts = Counter((line.run_id, line.position, line.name) for line in began)
    return Report(
        seed=seed,
        faults=dict(faults),
        numbers=numbers,
        runs=len(runs),
        begun=len(began),
        begun_again=sum(count - 1 for count in counts.values()),
        unseen=sum(line.what == UNSEEN for line in lines),
        asked_again=sum(line.what == AGAIN for line in lines),
        violations=violations,
    )


async def _runs(fleet: Fleet) -> list[Run]:
    found: list[Run] = []
    after: tuple[int, str] | None = None
    while page := await fleet.store.list(RunFilter(after=after, limit=_PAGE)):
        found += page
        after = (page[-1].created_at, page[-1].id)
    return found


def _of_runs(runs: list[Run]) -> list[str]:
    return [
        f"run {run.id} ({run.workflow}) is {run.status}, with the hold {run.hold}"
        for run in runs
        if run.status not in FINISHED or run.hold is not None
    ]


def _of_begins(lines: list[Line]) -> list[str]:
    """A body that began though its entry was there; or though a caller knew that its run had ended."""
    ended = {line.run_id: line.at for line in lines if line.what == ENDED}
    return [
        f"step {line.name!r} of run {line.run_id} at {line.position} began in process {line.pid}, attempt"
        f" {line.attempt}, after its entry was there"
        for line in lines
        if line.what == LATE or (line.what == BEGAN and line.at > ended.get(line.run_id, line.at))
    ]


def _of_callers(lines: list[Line], numbers: int) -> list[str]:
    wrong = [f"a caller of {line.run_id} was refused: {line.text}" for line in lines if line.what == REFUSED]
    ended = {line.run_id for line in lines if line.what == ENDED}
    started = {line.run_id for line in lines if line.what == STARTED}
    wrong += [f"{id_of(number)} has no end" for number in range(numbers) if id_of(number) not in ended]
    return wrong + [f"{one} ended without having been started" for one in sorted(ended - started)]


async def _of_effects(fleet: Fleet, runs: list[Run]) -> list[str]:
    rows = await fleet.database.ask(f"select run_id, name, position, count(*) from {EFFECTS} group by 1, 2, 3")
    wrong = [f"{row[1]!r} of run {row[0]} at {row[2]} wrote {row[3]} times" for row in rows if row[3] > 1]
    written: dict[str, Counter[str]] = {}
    for run_id, name, _, count in rows:
        written.setdefault(run_id, Counter())[name] += count
    for run in runs:
        found = written.pop(run.id, Counter[str]())
        if run.status is Status.SUCCEEDED or run.workflow == "gives_up":
            if found != Counter(WRITTEN[run.workflow]):
                wrong.append(f"run {run.id} ({run.workflow}, {run.status}) wrote {dict(found)}")
        else:
            done = Counter({name: count for name, count in found.items() if not name.startswith(UNDO)})
            undone = Counter({name.removeprefix(UNDO): found[name] for name in found if name.startswith(UNDO)})
            if done != undone:
                wrong.append(f"run {run.id} ({run.workflow}, {run.status}) did {dict(done)} and undid {dict(undone)}")
    return wrong + [f"run {run_id} wrote {dict(found)}, and is not there" for run_id, found in written.items()]


async def _of_hierarchies(fleet: Fleet, runs: list[Run]) -> list[str]:
    """Only what has a failure of its own is undone."""
    wrong: list[str] = []
    ids = [run.id for run in runs if run.workflow == "place"]
    doomed: set[str | None] = set()
    for start in range(0, len(ids), _PAGE):
        found = await fleet.store.get(ids[start : start + _PAGE])
        messages = {run_id: _request(one.input).message for run_id, one in found.items()}
        doomed |= {run_id for run_id, message in messages.items() if kind_of(number_of(message)) == "doomed_order"}
    for run in runs:
        expected = (Status.ROLLED_BACK, Status.CANCELLED) if {run.id, run.parent_id} & doomed else (Status.SUCCEEDED,)
        if run.workflow == "gives_up":
            expected = (Status.FAILED, Status.ROLLED_BACK)
        if run.status not in expected:
            wrong.append(f"run {run.id} ({run.workflow}) is {run.status}")
    return wrong


async def _of_ledger(fleet: Fleet, runs: list[Run]) -> list[str]:
    """Some order of all steps explains what each of them has read, and nothing that one appended is lost or twice."""
    results: dict[str, str] = {}
    for run in runs:
        if run.workflow == ledger.WORKFLOW:
            _, entries = await fleet.store.journal(run.id)
            for entry in entries:
                if entry.name == ledger.STEP and entry.value is not None:
                    results[f"{run.id} {entry.position}"] = entry.value
    rows = await fleet.database.ask(f"select key, place, value from {ledger.LISTS} order by place, value")
    entered = sum(run.workflow == ledger.WORKFLOW for run in runs) * ledger.ENTRIES
    wrong = [] if len(results) == entered else [f"the ledger has {len(results)} entries of {entered} in journals"]
    return wrong + ledger.anomalies(results, rows)


def _of_messages(fleet: Fleet) -> list[str]:
    messages = DRIVERS_OWN.sub("", fleet.messages())
    return [f"a process logged: {line[:300]}" for line in re.findall(r".* ERROR .*", messages)]
