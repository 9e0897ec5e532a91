"""What a batch says of the rows that it writes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.kernel.batch import is_brief_change
from perdure.kernel.runs import Hold, Run
from perdure.kernel.status import Status
from tests.kernel.examples import a_run

# Set when a run is made, or by another statement.
FIXED = {"id", "workflow", "model", "parent_id", "bond", "consumed", "created_at"}
BRIEF: dict[str, Any] = {
    "status": Status.SUSPENDED,
    "version": 9,
    "revision": 9,
    "owner": None,
    "claim": 9,
    "updated_at": 99,
    "completed_at": 99,
}
LONG: dict[str, Any] = {
    "workflow_version": "2",
    "undo": 1,
    "origin": "another",
    "tags": {"a": "b"},
    "hold": Hold(kind="paused", reason="by hand"),
    "deadline": 5,
    "attempt": 2,
    "recoveries": 1,
    "tried": "f-1",
    "started_at": 11,
}


def test_every_field_of_a_run_is_one_or_the_other() -> None:
    assert set(Run.__struct_fields__) == FIXED | BRIEF.keys() | LONG.keys()


@pytest.mark.parametrize("name", BRIEF)
def test_a_change_is_brief(name: str) -> None:
    before = a_run()
    assert is_brief_change(before, replace(before, **{name: BRIEF[name]}))


@pytest.mark.parametrize("name", LONG)
def test_a_change_is_not_brief(name: str) -> None:
    before = a_run()
    assert not is_brief_change(before, replace(before, **{name: LONG[name]}))
