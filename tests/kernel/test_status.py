"""The transition table: every pair is either allowed or refused with both statuses and the run in the error."""

from __future__ import annotations

import pytest

from perdure.errors import InvalidTransition, Misuse
from perdure.kernel.status import ACTIVE, FINISHED, TRANSITIONS, Status, check_transition, diagram

# Written out by hand from semantics.md (O1, decisions 1 and 2), not read from the table that is tested.
ALLOWED = {
    (None, "created"),
    (None, "running"),
    ("created", "running"),
    ("created", "cancelled"),
    ("created", "failed"),  # its deadline passed before anybody claimed it
    ("running", "suspended"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("running", "cancelling"),
    ("running", "rolling_back"),
    ("suspended", "running"),
    ("suspended", "failed"),
    ("suspended", "cancelled"),
    ("suspended", "cancelling"),
    ("suspended", "rolling_back"),
    ("cancelling", "rolling_back"),
    ("cancelling", "cancelled"),
    ("rolling_back", "rolled_back"),
    ("rolling_back", "rollback_failed"),
    ("succeeded", "rolling_back"),
    ("failed", "running"),
}
PAIRS = [(was, became) for was in (None, *Status) for became in Status]


@pytest.mark.parametrize(("was", "became"), [pair for pair in PAIRS if pair in ALLOWED])
def test_an_allowed_change_of_status_passes(was: Status | None, became: Status) -> None:
    check_transition("r-1", was, became)


@pytest.mark.parametrize(("was", "became"), [pair for pair in PAIRS if pair not in ALLOWED])
def test_any_other_is_refused_and_names_both_statuses_and_the_run(was: Status | None, became: Status) -> None:
    with pytest.raises(InvalidTransition) as caught:
        check_transition("r-1", was, became)
    error = caught.value
    assert (error.run_id, error.was, error.became) == ("r-1", was, became)
    for part in ("'r-1'", was or "nothing", became):
        assert part in str(error)
    assert isinstance(error, Misuse)


def test_the_refusal_says_what_would_be_allowed() -> None:
    with pytest.raises(InvalidTransition, match="from failed only running"):
        check_transition("r-1", Status.FAILED, Status.SUCCEEDED)
    with pytest.raises(InvalidTransition, match="from cancelled only nothing"):
        check_transition("r-1", Status.CANCELLED, Status.RUNNING)


def test_every_status_is_in_the_table_and_either_active_or_finished() -> None:
    assert set(TRANSITIONS) == {None, *Status}
    assert set(Status) == ACTIVE | FINISHED
    assert not ACTIVE & FINISHED


def test_an_active_run_can_always_end() -> None:
    for status in ACTIVE:
        reachable = {status}
        while more := {became for was in reachable for became in TRANSITIONS[was]} - reachable:
            reachable |= more
        assert reachable & FINISHED


def test_the_diagram_shows_every_arrow_and_no_other() -> None:
    arrows = {tuple(line.split(" --> ")) for line in map(str.strip, diagram().splitlines()) if "-->" in line}
    assert arrows == {(was or "[*]", became) for was, became in ALLOWED} | {(status, "[*]") for status in FINISHED}
