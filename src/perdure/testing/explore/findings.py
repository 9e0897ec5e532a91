"""The findings of an exploration, and the report about them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from perdure.testing.explore.trials import Outcome, Trial
from perdure.testing.explore.world import World

__all__ = ["Exploration", "Finding", "finding_of"]

Kind = Literal["not idempotent", "not deterministic", "result differs", "not undone", "stuck"]


class Finding(Struct, frozen=True, kw_only=True):
    """A mistake in the workflow. It has a kind, the steps involved, a description, and the trial that shows the
    mistake.

    `explore(…, only=finding.trial)` runs only that trial.
    """

    kind: Kind
    steps: tuple[str, ...]
    message: str
    trial: str
    disturbance: str

    def __str__(self) -> str:
        steps = f" ({', '.join(self.steps)})" if self.steps else ""
        return (
            f"{self.kind}{steps}: {self.message}\n  when: {self.disturbance}\n"
            f"  to repeat it: explore(…, only={self.trial!r})"
        )


class Exploration(Struct, frozen=True, kw_only=True):
    """The report of an exploration.

    `outcomes` has each way in which the undisturbed run may end. The way may depend on the order in which steps end.
    `is_complete` says whether all orders were tried.
    """

    call: str
    trials: int
    commits: int
    orders: int
    is_complete: bool
    outcomes: list[Outcome]
    findings: list[Finding]

    def check(self) -> None:
        """If there are findings, raise AssertionError with all of them."""
        if self.findings:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        orders = f"{self.orders} orders of steps' ends" + ("" if self.is_complete else ", of more")
        lines = [f"{self.call}: {self.trials} trials, {self.commits} commits, {orders}"]
        if len(self.outcomes) > 1:
            lines.append(f"{len(self.outcomes)} outcomes, which depend on the order in which steps end:")
            lines += [f"  {_described(outcome)}" for outcome in self.outcomes]
        lines += [f"- {finding}" for finding in self.findings] or ["nothing was found"]
        return "\n".join(lines)


def finding_of(trial: Trial, expected: Trial) -> Finding | None:
    """Return the finding that a trial shows, compared with the same trial without the crash. Return None if it shows
    nothing.
    """
    disturbance, outcome = trial.disturbance, trial.outcome
    if outcome.status == "held":
        return _finding(trial, "not deterministic", (), outcome.detail)
    if trial.bodies.mismatch:
        return _finding(trial, "not deterministic", (), trial.bodies.mismatch)
    if outcome.status == "stuck":
        return _finding(trial, "stuck", (), outcome.detail)
    is_undone = outcome.status == "rolled_back"
    if is_undone and (left := World.differences(trial.before, trial.after)):
        steps = tuple(dict.fromkeys(trial.bodies.wrote[place] for place, _, _ in left if place in trial.bodies.wrote))
        return _finding(trial, "not undone", steps, f"the run was rolled back, and this is left: {_places(left)}")
    if disturbance.point is None:
        return None
    # The process died in this trial. Everything must be the same as if it had not died.
    if differing := World.differences(expected.after, trial.after):
        repeated = {label.partition("#")[0] for label in trial.bodies.repeated}
        wrote = [trial.bodies.wrote[place] for place, _, _ in differing if place in trial.bodies.wrote]
        steps = tuple(dict.fromkeys(step for step in wrote if step in repeated))
        if not steps:
            message = f"after a crash the code took another way: {_places(differing)}"
            return _finding(trial, "not deterministic", (), message)
        return _finding(
            trial, "not idempotent", steps, f"the process died and the step ran again: {_places(differing)}"
        )
    if outcome != expected.outcome:
        message = f"{_described(outcome)} instead of {_described(expected.outcome)}"
        return _finding(trial, "result differs", tuple(trial.bodies.repeated), message)
    return None


def _finding(trial: Trial, kind: Kind, steps: tuple[str, ...], message: str) -> Finding:
    return Finding(
        kind=kind,
        steps=steps,
        message=message,
        trial=trial.disturbance.name,
        disturbance=str(trial.disturbance),
    )


def _places(differences: list[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{place} is {after!r:.200} instead of {before!r:.200}" for place, before, after in differences)


def _described(outcome: Outcome) -> str:
    output = "" if outcome.output is None else f" with {outcome.output!r:.200}"
    return f"{outcome.status}{output}{': ' if outcome.detail else ''}{outcome.detail}"
