"""Why a run does not go on, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.api.waits import WaitView
from perdure.dashboard.words import reasons
from perdure.kernel.runs import Hold
from perdure.views import RunView

NOW = datetime(2026, 11, 16, tzinfo=UTC)
RUN = RunView(
    id="r", workflow="w", workflow_version="", model="function", status="suspended", version=1, attempt=1, owner="e",
    parent_id=None, tags={}, hold=None, deadline=None, recoveries=0, created_at=NOW, started_at=NOW, updated_at=NOW,
    completed_at=None,
)  # fmt: skip


def wait(kind: str, name: str = "", position: str = "1", **more: Any) -> WaitView:
    given: dict[str, Any] = {"where": {}, "target": None, "due_at": None, "attempts": 0, "since": NOW, **more}
    return WaitView(position=position, kind=kind, name=name, **given)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (wait("event", "paid", where={"amount": 7}), "the event paid with amount = 7"),
        (wait("timer", "timer", due_at=NOW), "a timer"),
        (wait("retry", "charge", attempts=2), "the next attempt of step charge, after 2 failures"),
        (wait("beat", "render"), "step render, which is running"),
        (wait("run", target="child"), "the end of run"),
        (wait("event", "perdure.task/1"), "the answer to a task"),
    ],
)
def test_what_it_waits_for(found: WaitView, text: str) -> None:
    [[reason]] = reasons(RUN, [found], NOW)
    assert (reason.text, reason.is_awaited, reason.is_alarming) == (text, True, False)


def test_one_of_several_will_do_and_all_of_several_must_come() -> None:
    found = reasons(RUN, [wait("event", "a"), wait("timer"), wait("event", "b", position="2")], NOW)
    assert [len(some) for some in found] == [2, 1]


@pytest.mark.parametrize(
    ("changes", "text", "is_alarming"),
    [
        ({"hold": Hold(kind="paused", reason="lunch")}, "it is paused: lunch", False),
        ({"hold": Hold(kind="blocked", reason="step a is gone")}, "its code does not fit its journal", True),
        ({"hold": Hold(kind="poison", reason="5 times")}, "it kept killing its process", True),
        ({"owner": None, "stranded": "no engine has workflow 'w'"}, "no engine has workflow 'w': start a worker", True),
        ({"status": "running"}, "its code, or a step, is running", False),
        ({"status": "running", "owner": None}, "as soon as an engine takes it", False),
        ({"status": "created"}, "no engine has begun it yet", False),
        ({"status": "rolling_back"}, "it is being rolled back", False),
    ],
)
def test_why_it_does_not_go_on(changes: dict[str, Any], text: str, is_alarming: bool) -> None:
    [[reason]] = reasons(replace(RUN, **changes), [], NOW)
    assert text in reason.text
    assert reason.is_alarming == is_alarming


def test_what_is_late_is_alarming_and_what_has_ended_waits_for_nothing() -> None:
    [[late]] = reasons(RUN, [wait("timer", due_at=NOW - timedelta(minutes=1))], NOW)
    assert late.is_alarming
    assert reasons(replace(RUN, status="failed"), [wait("timer")], NOW) == []
