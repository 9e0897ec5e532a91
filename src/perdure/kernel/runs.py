"""The stored form of a run: its row, its hold, its audit rows and its outcome. Times are microseconds since the epoch.

rows.py has the journal, the waits and the streams of a run. events.py has the events. status.py has the statuses.

Payloads are JSON text, which the kernel does not read. Rows are never part of a reference cycle. So the garbage
collector does not need to track the kinds of rows that exist in thousands (gc=False).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perdure.kernel.status import Status


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a run is held. A hold is independent of the run's status. `fingerprint` is a list of fingerprints
    of code that did not fit. The last is the newest (fingerprints.py). If it is empty, only a person can lift the hold.

    The other fields are for runs of operations. With them, any engine can end the run without its code.

    - `next_seq`: the number of the run's next row. It is 0 if the run's rows were not examined yet
    - `idle_seq`: the same number if the run has nothing to undo, otherwise 0
    - `is_undoing`: the run's rollback has begun
    - `failure`: the failure with which the run gives up
    - `missed`: the failure with which the run ends if it is not rolled back by `undone_by`
    - `give_up_by`: the deadline of the run before its rollback begins
    - `asked`: the run was asked to give up
    """

    kind: str  # blocked | paused | poison
    reason: str
    details: str = ""
    fingerprint: str = ""
    at: int = 0
    idle_seq: int = 0
    failure: str = ""
    next_seq: int = 0
    is_undoing: bool = False
    missed: str = ""
    give_up_by: int = 0
    undone_by: int = 0
    asked: bool = False


class Damage(Hold, frozen=True, kw_only=True, omit_defaults=True):
    """A hold that marks a run whose own row is damaged. It is made when the row is read. It is never stored. Nothing
    can be decided about the run until the row is corrected.
    """


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run without its payloads. The kernel decides on it. The engine has one in memory for every loaded run."""

    id: str
    workflow: str
    workflow_version: str = ""
    # function | graph | operation; the version of an operation's run has the topic and the version of the code
    model: str = "function"
    status: Status
    version: int
    revision: int = 0  # how many audit rows were written so far
    owner: str | None = None
    claim: int = 0  # grows with every change of owner; step results contain it
    parent_id: str | None = None
    bond: str = ""  # the tie to its parent: awaited | started | detached | called
    consumed: bool = False  # whether its failure was handed to a run that waited for it
    undo: int = 0  # how many compensations it has registered
    # if the run has continued: the call with which it was started, and how often it continued (continuation_counts.py)
    origin: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    # an operation's run has a deadline only while it is held: see kernel/rules/operations.py
    deadline: int | None = None
    attempt: int = 1  # grows with every retry by hand
    recoveries: int = 0  # recoveries in a row without progress
    created_at: int
    started_at: int | None = None  # the time of the workflow code's first activation; the same in every replay
    updated_at: int
    completed_at: int | None = None
    tried: str = ""  # fingerprints of the code that did not fit before the hold was lifted; cleared by progress

    @property
    def known_model(self) -> str:
        """The run's model, or "" if the row does not say which it is. If the result is "", only the code of the run's
        workflow knows the model.

        A run that was started only by a name is stored as a function with claim 0. A run that is known to be a function
        begins with claim 1. After a run has continued, its model may differ from the model with which it began. The SQL
        stores use this condition in their queries.
        """
        if self.model == "operation":
            return self.model
        has_continued = self.origin and (self.bond != "called" or " #" in self.origin)
        return "" if has_continued or (self.model == "function" and not self.claim) else self.model


class Audit(Struct, frozen=True, kw_only=True, gc=False):
    """One change of a run's status, hold, tags or deadline."""

    run_id: str
    seq: int
    version: int
    was: str | None
    became: str
    cause: str
    actor: str
    details: str = ""
    at: int


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a finished run: an output, or a failure (as JSON). A cancelled run has neither."""

    output: str | None = None
    failure: str | None = None
