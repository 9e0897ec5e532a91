"""Many runs at once: what will happen to each is told before it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

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
_TOLD_MAX: Final = 50


class Change(Struct, frozen=True):
    """Something that can be done to many: to whom it can be done, and in which words."""

    title: str
    effect: str
    left: str
    can: Callable[[RunView], bool]
    do: Callable[[AnyClient, str, int, str], Awaitable[Any]]


async def _cancel(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    if not await client.handle(run_id).cancel(expected_version=version, actor=actor):
        raise RunFinished(f"run {run_id!r} has ended", run_id=run_id, status="ended")


async def _retry(client: AnyClient, run_id: str, version: int, actor: str) -> None:
    await client.handle(run_id).retry(expected_version=version, actor=actor)


CHANGES: Final = {
    "cancel": Change(
        "Cancel",
        "will be cancelled, with its children: running steps are stopped, and what was registered for that is undone",
        "has ended already, and stays as it is",
        lambda run: run.status not in FINISHED,
        _cancel,
    ),
    "retry": Change(
        "Retry",
        "will run again, from the step whose failure ended it; what was done before stays done",
        "has not failed, and stays as it is",
        lambda run: run.status == Status.FAILED,
        _retry,
    ),
}


async def show(visit: Visit) -> Shown:
    name = visit.asked("do")
    if name not in CHANGES:
        raise Refused("invalid_request", f"nothing is called {name!r:.40}; there are {', '.join(CHANGES)}")
    change = CHANGES[name]
    query = visit.asked("q")
    ids = visit.asked_all("id")
    runs = [] if visit.asked("done") else await _meant(visit, ids, query)
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


async def _meant(visit: Visit, ids: Sequence[str], query: str) -> list[RunView]:
    if ids:
        found = await visit.client.runs.get_many(ids[:_RUNS_MAX])
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
    """Each for itself, at the version that was shown: what has changed meanwhile is left alone, and told."""
    name = form.text("do")
    if name not in CHANGES:
        raise Refused("invalid_request", f"nothing is called {name!r:.40}")
    done, refused = 0, []
    for text in form.texts("run")[:_RUNS_MAX]:
        version, _, run_id = text.partition(":")
        if not version.isascii() or not version.isdigit() or not run_id:
            raise Refused("invalid_request", f"{text!r:.80} is no run with its version")
        try:
            await CHANGES[name].do(visit.client, run_id, int(version), visit.caller.name)
            done += 1
        except (ConcurrentModification, RunFinished, RunNotRetryable, RunNotFound, Misuse):
            refused.append(run_id)
    told = [("refused", one) for one in refused[:_TOLD_MAX]]
    return url("bulk", [("do", name), ("q", form.text("q")), ("done", str(done)), ("count", str(len(refused))), *told])


page = Page(name="bulk", path="/bulk", show=show, actions=[Action("/bulk", change_all)], menu="runs")
