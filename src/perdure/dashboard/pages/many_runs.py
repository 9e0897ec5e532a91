"""One change that is made to many runs. Before it is made, the page shows what will happen to each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from perdure.dashboard.filters import Unclear, parsed
from perdure.dashboard.page import Action, Form, Page, Shown, Visit
from perdure.dashboard.renderer import url
from perdure.engine import AnyClient
from perdure.errors import ConcurrentModification, Misuse, RunFinished, RunNotFound, RunNotRetryable
from perdure.http.problems import Refused
from perdure.kernel.status import FINISHED, Status
from perdure.views import RunView

_RUNS_MAX: Final = 1_000
_NAMED_MAX: Final = 50
# The names are part of an address, and browsers and servers limit the length of an address.
_NAMED_CHARS_MAX: Final = 4_000
_VERSION_DIGITS_MAX: Final = 18


class Words(Struct, frozen=True):
    """A part of a sentence, in a form for one run and a form for several runs."""

    one: str
    many: str

    def of(self, count: int) -> str:
        """Return the words for a number of runs."""
        return self.one if count == 1 else self.many


class Change(Struct, frozen=True, kw_only=True):
    """A change that can be made to many runs: which runs it applies to, and the words for it."""

    title: str
    effect: Words
    left: Words  # for the runs to which the change does not apply
    can: Callable[[RunView], bool]
    do: Callable[[AnyClient, str, int, str], Awaitable[Any]]


async def _cancel(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    if not await client.handle(run_id).cancel(expected_version=version, actor=actor):
        raise RunFinished(f"run {run_id!r} has ended", run_id=run_id, status="ended")


async def _retry(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    await client.handle(run_id).retry(expected_version=version, actor=actor)


async def _pause(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    await client.handle(run_id).pause(expected_version=version, actor=actor)


async def _resume(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    await client.handle(run_id).resume(expected_version=version, actor=actor)


CHANGES: Final = {
    "cancel": Change(
        title="Cancel",
        effect=Words(
            "will be cancelled, with its children: running steps are stopped, and its compensations are executed",
            "will be cancelled, with their children: running steps are stopped, and their compensations are executed",
        ),
        left=Words("has ended already, and stays as it is", "have ended already, and stay as they are"),
        can=lambda run: run.status not in FINISHED,
        do=_cancel,
    ),
    "pause": Change(
        title="Pause",
        effect=Words(
            "will be held until it is resumed; running steps are stopped, and run again then",
            "will be held until they are resumed; running steps are stopped, and run again then",
        ),
        left=Words(
            "has ended, is held already, or is an operation, and stays as it is",
            "have ended, are held already, or are operations, and stay as they are",
        ),
        can=lambda run: run.status not in FINISHED and run.hold is None and run.model != "operation",
        do=_pause,
    ),
    "resume": Change(
        title="Resume",
        effect=Words("will continue where it was", "will continue where they were"),
        left=Words("is not held, and stays as it is", "are not held, and stay as they are"),
        can=lambda run: run.hold is not None,
        do=_resume,
    ),
    "retry": Change(
        title="Retry",
        effect=Words(
            "will run again, from the step whose failure ended it; what was done before stays done",
            "will run again, from the steps whose failures ended them; what was done before stays done",
        ),
        left=Words("has not failed, and stays as it is", "have not failed, and stay as they are"),
        can=lambda run: run.status == Status.FAILED,
        do=_retry,
    ),
}


async def show(visit: Visit) -> Shown:
    name = visit.asked("do")
    if name not in CHANGES:
        raise Refused("invalid_request", f"there is no change {name!r:.40}; use one of {', '.join(CHANGES)}")
    change = CHANGES[name]
    query = visit.asked("q")
    ids = list(dict.fromkeys(visit.asked_all("id")))
    runs = [] if visit.asked("done") else await _selected(visit, ids, query)
    return {
        "title": f"{change.title} runs",
        "name": name,
        "change": change,
        "query": query,
        "affected": [run for run in runs if change.can(run)],
        "left": [run for run in runs if not change.can(run)],
        "is_cut": not ids and len(runs) == _RUNS_MAX,
        "done": visit.asked("done"),
        "refused": visit.asked_all("refused"),
        "refused_count": visit.asked("count"),
    }


async def _selected(visit: Visit, ids: Sequence[str], query: str) -> list[RunView]:
    """Return the runs with these ids, or the runs that the filter finds."""
    if len(ids) > _RUNS_MAX:
        raise Refused("invalid_request", f"at most {_RUNS_MAX} runs can be changed at once")
    if ids:
        found = await visit.client.runs.get_many(ids)
        return [found[run_id] for run_id in ids if run_id in found]
    if not visit.asked("all"):
        return []
    try:
        search = parsed(query, datetime.now(UTC))
    except Unclear as error:
        raise Refused("invalid_request", str(error)) from error
    if search.run_id is not None:
        run = await visit.client.runs.get(search.run_id)
        return [run] if run is not None else []
    return (await search.wanted.page(visit.client, _RUNS_MAX)).runs


async def change_all(visit: Visit, form: Form) -> str:
    """Change each run at the version that the page has shown. If a run has changed since then, it stays as it is, and
    the next page names it.
    """
    name = form.text("do")
    if name not in CHANGES:
        raise Refused("invalid_request", f"there is no change {name!r:.40}")
    done, refused = 0, []
    for text in form.texts("run")[:_RUNS_MAX]:
        version, _, run_id = text.partition(":")
        is_number = version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS_MAX
        if not is_number or not run_id:
            raise Refused("invalid_request", f"{text!r:.80} is not a version and a run")
        try:
            await CHANGES[name].do(visit.client, run_id, int(version), visit.caller.name)
            done += 1
        except (ConcurrentModification, RunFinished, RunNotRetryable, RunNotFound, Misuse):
            refused.append(run_id)
    counts = [("done", str(done)), ("count", str(len(refused)))]
    return url("many-runs", [("do", name), ("q", form.text("q")[:_NAMED_CHARS_MAX]), *counts, *_named(refused)])


def _named(refused: Sequence[str]) -> list[tuple[str, str]]:
    """Return the first of these runs as parameters of an address. There are only so many that the address is not too
    long.
    """
    named: list[tuple[str, str]] = []
    left = _NAMED_CHARS_MAX
    for run_id in refused[:_NAMED_MAX]:
        left -= len(quote(run_id))
        if left < 0:
            break
        named.append(("refused", run_id))
    return named


page = Page(name="many_runs", path="/many-runs", show=show, actions=[Action("/many-runs", change_all)], menu="runs")
