"""How often a run has continued, which stands at the end of its origin."""

from __future__ import annotations

import pytest

from perdure.kernel.continuation_counts import life_of, next_life, without_life
from perdure.kernel.lineages import origin_of, read_origin
from perdure.kernel.ops import Continuation
from perdure.kernel.runs import Run
from tests.kernel.examples import a_run, advance, decided


def test_lives_are_counted_from_the_first_hop_on() -> None:
    origin = "poll 0123abcd"
    for life in range(1, 12):
        origin = next_life(origin)
        assert (life_of(origin), without_life(origin)) == (life, "poll 0123abcd")


@pytest.mark.parametrize("origin", ["", "poll 0123abcd", "poll #7 0123abcd", "a#1", "poll 0123 #0", "poll 0123 #x"])
def test_what_has_no_number_at_its_end_is_in_its_first_life(origin: str) -> None:
    assert (life_of(origin), without_life(origin)) == (0, origin)


def continued(run: Run) -> Run:
    continuation = Continuation(workflow="w", workflow_version="", input="{}", origin="w 0123abcd")
    decision = decided(run, advance(continuation=continuation))
    assert decision.run is not None
    return decision.run


def test_a_run_counts_its_lives() -> None:
    once = continued(a_run())
    assert once.origin == "w 0123abcd #1"
    assert continued(a_run(origin=once.origin)).origin == "w 0123abcd #2"


def test_a_run_that_continued_before_lives_were_counted_goes_on_from_its_first() -> None:
    assert continued(a_run(origin="v 4567")).origin == "v 4567 #1"


def test_a_run_that_an_operation_has_called_keeps_its_message_and_its_lineage() -> None:
    called = continued(a_run(origin=origin_of("m", ("r", "a"))))
    assert life_of(called.origin) == 1
    assert read_origin(called.origin) == ("m", ("r", "a"))
