"""Failing scenarios are made smaller, and can be run again."""

from __future__ import annotations

import pytest

from perdure.errors import InvalidArguments
from perdure.testing.simulate import Bug
from perdure.testing.simulate.focus import FOCUS
from perdure.testing.simulate.mix import MIX
from perdure.testing.simulate.scenario import Report, simulate
from perdure.testing.simulate.shrink import changed, shrink


def a_failure(bug: Bug) -> Report:
    return next(found for seed in range(2_000) if (found := simulate(seed, bugs=[bug], mix=FOCUS[bug])).problem)


@pytest.mark.timeout(600)
def test_a_scenario_becomes_smaller_and_keeps_its_problem() -> None:
    bug = Bug.UNKNOWN_IS_FAILURE
    whole = a_failure(bug)
    small = shrink(whole, FOCUS[bug], bugs=[bug])
    assert len(small.report.trace) < len(whole.trace) / 3
    assert small.report.problem.partition(":")[0] == whole.problem.partition(":")[0]
    again = simulate(small.report.seed, bugs=[bug], mix=changed(FOCUS[bug], small.settings))
    assert again.trace == small.report.trace
    assert simulate(small.report.seed, mix=changed(FOCUS[bug], small.settings)).problem == ""


def test_a_scenario_of_which_nothing_can_be_left_out_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Report(seed=7, problem="Stuck: these are stuck")
    monkeypatch.setattr("perdure.testing.simulate.shrink.simulate", lambda seed, **_: Report(seed=seed, problem=""))
    small = shrink(whole, MIX)
    assert (small.report, small.settings) == (whole, {})
    assert small.again() == "python -m perdure.testing.simulate --seeds 1 --from 7 --tail 0"


def test_settings_are_written_as_on_the_command_line() -> None:
    mix = changed(MIX, {"runs": "1..2", "weights": "work,nap", "calm": "slow,busy", "continued": "0"})
    assert (mix.runs, mix.weights, mix.continued) == ((1, 2), {"work": 5, "nap": 2}, 0)


@pytest.mark.parametrize("settings", [{"runs": "many"}, {"colour": "1"}, {"calm": "rain"}])
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidArguments, match="is not a setting"):
        changed(MIX, settings)
