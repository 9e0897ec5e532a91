"""Ops: requested state changes, as data. Time and ids come in with them; the rules are in decide.py."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType, field

from perdure.kernel.records import Entry, Hold, Outcome, Wait
from perdure.kernel.status import Status


class Op(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A request to change one run. `actor` is who asked, for the audit trail."""

    run_id: str
    at: int
    actor: str = "engine"

    @property
    def payload_bytes(self) -> int:
        """How much this op adds to a batch beyond its rows' fixed parts."""
        return 0


class Start(Op, frozen=True, kw_only=True, gc=False):
    """Create a run. `admit` starts it on this engine at once; otherwise it waits as `created` to be claimed.

    `fresh` says that the id was just made, so nobody needs to look whether it is taken. `admitted_at`, which the
    coordinator sets, is when the workflow's own time begins: the op may have waited in the inbox since `at`.
    """

    workflow: str
    workflow_version: str = ""
    model: str = "function"
    input: str
    tags: Mapping[str, str] = field(default_factory=dict)
    deadline: int | None = None
    parent_id: str | None = None
    fresh: bool = False
    admit: bool = True
    admitted_at: int | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.input)


class End(Struct, frozen=True, kw_only=True, gc=False):
    """How a run's code ended: `succeeded` with an output or `failed` with a failure.

    Unless it `has_waited` for something durable in its life, there is nothing of that kind to clear.
    """

    status: Status
    outcome: Outcome
    has_waited: bool = True


class Advance(Op, frozen=True, kw_only=True, gc=False):
    """A live run went on: these entries happened, these waits came and went, and perhaps it ended.

    `idle` means that nothing of it is running now: it waits only for what is durable. It is dropped unless `claim` is
    still the run's.
    """

    claim: int
    cause: str
    entries: tuple[Entry, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    idle: bool = False
    end: End | None = None

    @property
    def payload_bytes(self) -> int:
        size = 0
        for entry in self.entries:
            size += len(entry.value or "") + len(entry.failure or "")
        for wait in self.waits:
            size += len(wait.details or "") + len(wait.failure or "")
        if self.end is not None:
            size += len(self.end.outcome.output or "") + len(self.end.outcome.failure or "")
        return size


class Take(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a run that this engine has just claimed. `orphaned`: its last owner died with it.

    Held as poison when it was orphaned more than `recoveries_max` times in a row without getting anywhere.
    """

    claim: int
    orphaned: bool
    recoveries_max: int
    due_at: int | None = None  # the earliest thing it waits for


class Release(Op, frozen=True, kw_only=True, gc=False):
    """Give a run up, so that any engine may claim it."""

    claim: int


class Cancel(Op, frozen=True, kw_only=True, gc=False):
    """End an active run as cancelled. Replies False, changing nothing, if it has ended or does not exist."""

    reason: str = ""
    failure: str


class Expire(Op, frozen=True, kw_only=True, gc=False):
    """End an active run whose deadline has passed as failed."""

    failure: str


class Retry(Op, frozen=True, kw_only=True, gc=False):
    """Run a failed run again: the entries from `from_entry` on (None: none) are archived and happen anew."""

    expected_version: int
    from_entry: int | None = None


class Update(Op, frozen=True, kw_only=True, gc=False):
    """Edit tags or deadline. `expected_version` None takes whatever version there is."""

    expected_version: int | None = None
    tags: Mapping[str, str] | UnsetType = UNSET
    deadline: int | UnsetType | None = UNSET


class SetHold(Op, frozen=True, kw_only=True, gc=False):
    """Set an active run aside. With a `claim`, only if that is still the run's."""

    hold: Hold
    claim: int | None = None


class Resume(Op, frozen=True, kw_only=True, gc=False):
    """Lift a run's hold. `take` goes on with it on this engine at once."""

    take: bool = True
