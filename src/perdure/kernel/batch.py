"""What one commit writes. Run and wait rows stand in their final state; journal and audit rows are appended."""

from __future__ import annotations

from msgspec import Struct, field

from perdure.kernel.records import Audit, Entry, Outcome, Run, Wait


class RunWrite(Struct, kw_only=True):
    """A run's row in its final state.

    `expected_version` None inserts; otherwise the row must still have `expected_owner` and `expected_version`.
    `outcome` None leaves output and failure as they are.
    """

    run: Run
    expected_version: int | None
    expected_owner: str | None = None
    input: str | None = None
    outcome: Outcome | None = None


class Batch(Struct, kw_only=True):
    """One transaction of one engine. Its store applies, in this order: the fence and the batch number, runs,
    archive, journal, waits (cleared, dropped, put), audit, mail."""

    engine_id: str
    epoch: int
    number: int
    runs: dict[str, RunWrite] = field(default_factory=dict)
    archive: list[tuple[str, int, int]] = field(default_factory=list)  # run id, from entry, attempt
    journal: list[Entry] = field(default_factory=list)
    waits_cleared: list[str] = field(default_factory=list)
    waits_dropped: list[tuple[str, str]] = field(default_factory=list)  # run id, position
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    audit: list[Audit] = field(default_factory=list)
    mail_done: dict[int, str | None] = field(default_factory=dict)  # id -> reply; None: nobody waits for one
