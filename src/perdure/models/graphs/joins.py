"""Joins: which branches of a fork have arrived, whether a join can go on or never can, and the merges of a join. This
module is pure.

token_moves.py moves a token at a join. The token arrives, or goes on behind the join. If it is in no branch of the
join's fork, it passes straight through.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from perdure.errors import NoMatchingEdge
from perdure.models.graphs.decisions import TimerKey
from perdure.models.graphs.plan import Join
from perdure.models.graphs.rules_versions import LAPS_RULES
from perdure.models.graphs.sizes import Sizes
from perdure.models.graphs.tokens import Fork, Meeting, failures


class Joins:
    """The joins of one run that are waiting, and their timers. `timers_to_set` and `timers_to_drop` collect the
    machine's next decisions.
    """

    def __init__(self, rules: int, merged_bytes_max: int) -> None:
        self.sizes = Sizes(merged_bytes_max, rules)
        self.timed: dict[TimerKey, tuple[Fork, Meeting]] = {}
        self.timers_to_set: list[tuple[TimerKey, float]] = []
        self.timers_to_drop: list[TimerKey] = []
        self._rules = rules

    def arrive(self, fork: Fork, join: Join, index: int, outputs: tuple[Any, ...], in_a_row: int) -> None:
        """Note that a branch has arrived. It has one output for each merge."""
        meeting = fork.meetings.get(join.target)
        if meeting is None:
            meeting = fork.meetings[join.target] = Meeting(join)
        if meeting.fired:
            if join.spec.on_early == "late_merge":
                for merge, output in zip(join.merges, outputs, strict=True):
                    merge.add_late(index, output, fork.scope, self.sizes)
            return
        if index not in meeting.arrived:
            meeting.still_live += 1
        meeting.arrived[index] = outputs
        meeting.in_a_row = in_a_row if meeting.in_a_row is None else min(in_a_row, meeting.in_a_row)
        if join.spec.timeout is not None and not meeting.has_timer:
            key = (fork.id, join.target)
            meeting.has_timer = True
            self.timed[key] = (fork, meeting)
            self.timers_to_set.append((key, join.spec.timeout))

    def fail_branch(self, fork: Fork, index: int, about: dict[str, Any], error: BaseException) -> None:
        """Mark a branch as failed, even if some of its tokens have arrived or will arrive."""
        if index in fork.failed:
            return
        fork.failed[index] = (about, error)
        fork.failed_live += 1
        for target, meeting in list(fork.meetings.items()):
            if not meeting.fired and meeting.arrived.pop(index, None) is not None:
                meeting.still_live -= 1
                if not meeting.arrived:
                    self.drop_timer(fork, meeting)
                    del fork.meetings[target]

    def fire(self, fork: Fork, join: Join) -> Meeting:
        """Note that a join has gone on. Raises NoMatchingEdge if no token has arrived and the loop around the join
        would have no limit.
        """
        meeting = fork.meetings.setdefault(join.target, Meeting(join))
        if not meeting.arrived and (passes := join.passes) is not None and self._rules >= LAPS_RULES:
            laps = fork.laps.get(passes.number, 0)
            if laps + max(fork.laps.get(number, 0) for number in passes.edges) >= passes.limit:
                message = (
                    f"{join.place}: no branch arrives, and on the way to it the limit of {passes.limit} is reached"
                )
                raise NoMatchingEdge(message, place=join.place)
            fork.count({**fork.laps, passes.number: laps + 1})
        meeting.fired = True
        self.drop_timer(fork, meeting)
        return meeting

    def drop_timer(self, fork: Fork, meeting: Meeting) -> None:
        """Drop the timer of a join, if it has one."""
        if meeting.has_timer:
            meeting.has_timer = False
            key = (fork.id, meeting.join.target)
            del self.timed[key]
            fresh = [one for one in self.timers_to_set if one[0] != key]
            if len(fresh) == len(self.timers_to_set):
                self.timers_to_drop.append(key)
            self.timers_to_set = fresh

    def due(self, key: TimerKey) -> tuple[Fork, Meeting] | None:
        """Return the join whose timer is due. Return None if the join no longer waits."""
        found = self.timed.pop(key, None)
        if found is not None:
            found[1].has_timer = False
        return found


class Verdict(Struct, frozen=True):
    """The result of judging a join: it goes on now, or the reason why it never can. If it has neither, the join keeps
    waiting.
    """

    goes_on: bool = False
    why_never: str | None = None


WAITS: Final = Verdict()
GOES_ON: Final = Verdict(goes_on=True)


def verdict(fork: Fork, join: Join, *, is_first: bool, is_only: bool) -> Verdict:
    """Judge a join by the state of its fork's branches. `is_first` and `is_only` say whether it is the first, or the
    only, join of the fork.
    """
    meeting = fork.meetings.get(join.target)
    if meeting is not None and meeting.fired:
        return WAITS
    arrived = 0 if meeting is None else len(meeting.arrived)
    # If no token has arrived at any join, the first join decides. But if tokens went on to the join of an outer fork,
    # no join decides.
    alone = is_first and not fork.meetings and not fork.has_leavers and fork.unfinished == 0
    enough = join.enough
    if enough is None:
        return _of_all(fork, join, arrived, alone=alone)
    if fork.total == 0:
        return GOES_ON if is_first else WAITS
    if arrived >= enough:
        return GOES_ON
    if arrived or alone or (is_only and not fork.has_leavers):
        coming = fork.unfinished - fork.failed_live - (0 if meeting is None else meeting.still_live)
        if arrived + coming < enough:
            why = f"it needs {enough} of {fork.total} branches, of which {arrived} arrived and {coming} can"
            return Verdict(why_never=f"{why}; failed: {failures(fork)}" if fork.failed else why)
    return WAITS


def _of_all(fork: Fork, join: Join, arrived: int, *, alone: bool) -> Verdict:
    """Judge a join that waits for all branches."""
    tolerated = join.tolerated(fork.total)
    if tolerated is not None and len(fork.failed) > tolerated:
        why = f"{len(fork.failed):,} of {fork.total:,} branches have failed, and it tolerates {tolerated:,}"
        return Verdict(why_never=f"{why}: {failures(fork)}")
    if arrived and not fork.unfinished:
        return GOES_ON
    if alone and fork.failed:
        why = f"all {len(fork.failed):,} branches that were to arrive have failed"
        return Verdict(why_never=f"{why}: {failures(fork)}")
    return GOES_ON if alone and not fork.is_split else WAITS


def late(fork: Fork, meeting: Meeting) -> str:
    """Return the reason why a join fails whose timeout has passed."""
    missing = fork.total - len(meeting.arrived)
    why = f"{missing} of {fork.total} branches did not arrive within {meeting.join.spec.timeout:g} s of the first"
    return f"{why}; failed: {failures(fork)}" if fork.failed else why


def merge(fork: Fork, join: Join, meeting: Meeting, sizes: Sizes) -> None:
    """Merge the outputs of the branches into the context of the token that goes on. Raises JoinFailed,
    LimitExceeded.
    """
    outputs = dict(meeting.arrived)
    if join.enough is None:
        for index, (about, _) in fork.failed.items():
            outputs.setdefault(index, tuple({"error": about} for _ in join.merges))
    if fork.is_split:
        for index in range(fork.total) if fork.unfinished == 0 else sorted(meeting.arrived):
            fork.scope.adopt(fork.scopes[index])
    for place, one in enumerate(join.merges):
        one.apply({index: output[place] for index, output in outputs.items()}, fork.scope, sizes)
    meeting.arrived = dict.fromkeys(meeting.arrived, ())  # The merged values do not need to be kept twice.


__all__ = ["GOES_ON", "Joins", "Verdict", "late", "merge", "verdict"]
