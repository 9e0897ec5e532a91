"""A run as it is stored: its row, its hold, its audit rows and its outcome. Times are microseconds since the epoch.

The journal, waits and streams of a run are in rows.py, events in events.py. The statuses are in status.py.

Payloads are JSON text and opaque here. Rows are never part of a reference cycle, so the garbage collector need not
track the kinds that exist in thousands (gc=False).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perdure.kernel.status import Status


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run is held. A hold is independent of the run's status. `fingerprint` has the fingerprint of the code that
    did not fit, after those of the code that was tried before (fingerprints.py). If it is empty, only a person can lift
    the hold.

    The other fields are for runs of operations. With them, any engine can end the run without its code.

    - `next_seq`: the number of the run's next row. 0 if its rows were not examined yet
    - `idle_seq`: the same number if the run has nothing to undo, and 0 otherwise
    - `is_undoing`: the run's rollback has begun
    - `failure`: the failure with which the run gives up
    - `missed`: the failure with which the run ends if it is not rolled back by `undone_by`
    - `give_up_by`: the deadline of the run before its rollback begins
    - `asked`: the run is to give up
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
    """The hold of a run whose own row is damaged. It is made when the row is read, and is never stored. Nothing can be
    decided about the run until the row is corrected."""


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run without its payloads. The kernel decides on it, and the engine has it in memory for every loaded run."""

    id: str
    workflow: str
    workflow_version: str = ""
    model: str = "function"  # function | graph | operation; an operation's version is its topic and its code's version
    status: Status
    version: int
    revision: int = 0  # audit rows written so far
    owner: str | None = None
    claim: int = 0  # grows with every change of owner; step results carry it
    parent_id: str | None = None
    bond: str = ""  # to its parent: awaited | started | detached | called
    consumed: bool = False  # its failure was handed to a run that waited for it
    undo: int = 0  # how many compensations it has registered
    origin: str = ""  # if the run has continued: the call it was started as, and how often (continuation_counts.py)
    tags: Mapping[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    deadline: int | None = None  # an operation's run has one only while it is held, see kernel/rules/operations.py
    attempt: int = 1  # grows with every operator's retry
    recoveries: int = 0  # in a row, without progress between them
    created_at: int
    started_at: int | None = None  # the time of the workflow code's first activation, in every replay
    updated_at: int
    completed_at: int | None = None
    tried: str = ""  # fingerprints of the code that did not fit before the hold was lifted; empty after progress

    @property
    def known_model(self) -> str:
        """The run's model, or "" if the row does not say it. Then only the code of the run's workflow knows the model.

        A run that was started by a name alone is stored as a function with claim 0. A run that is known to be a
        function begins with claim 1. A run that has continued as something else may have another model than it began
        with. The SQL stores have this condition in their queries.
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
    """The outcome of a finished run: an output, or a failure (JSON of Failure), or neither (cancelled)."""

    output: str | None = None
    failure: str | None = None
