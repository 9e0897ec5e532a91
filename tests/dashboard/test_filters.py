"""The filter language: what it says, and what is told about what it does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure.dashboard.filters import Unclear, parsed
from perdure.http.params import Wanted

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Wanted()),
        ("status:failed", Wanted(statuses=("failed",))),
        ("STATUS:Failed,rolled_back", Wanted(statuses=("failed", "rolled_back"))),
        ('workflow:"my flow" hold:paused', Wanted(workflow="my flow", hold="paused")),
        ("workflow:a:b parent:p-1", Wanted(workflow="a:b", parent="p-1")),
        ("tag:tenant=acme tag:a=b=c", Wanted(tags={"tenant": "acme", "a": "b=c"})),
        ("since:2h", Wanted(created_from=NOW - timedelta(hours=2))),
        (
            "since:2026-11-01 before:2026-11-02T10:00+01:00",
            Wanted(created_from=datetime(2026, 11, 1, tzinfo=UTC), created_before=datetime(2026, 11, 2, 9, tzinfo=UTC)),
        ),
    ],
)
def test_what_runs_are_meant(text: str, wanted: Wanted) -> None:
    found = parsed(text, NOW)
    assert (found.wanted, found.run_id) == (wanted, None)


def test_groups_of_statuses() -> None:
    assert set(parsed("status:ended,running", NOW).wanted.statuses) == {
        "running", "succeeded", "failed", "cancelled", "rolled_back", "rollback_failed"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["o-17", '"order 17"', "01a1e392-22e8-7830-848e-7ce8dbec4d5f"])
def test_anything_else_is_the_id_of_a_run(text: str) -> None:
    assert parsed(text, NOW).run_id == text.strip('"')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("status:fine", "there is no status 'fine'; use one of created,"),
        ("sttus:failed", "there is no filter 'sttus'; use status, workflow,"),
        ("hold:no", "there is no hold 'no'"),
        ("tag:tenant", "tag:name=value"),
        ("since:yesterday", "is not a time"),
        ("since:99999999d", "is not a time"),
        ('workflow:""', "workflow: has no value"),
    ],
)
def test_what_is_unclear_is_told(text: str, told: str) -> None:
    with pytest.raises(Unclear, match=told):
        parsed(text, NOW)
