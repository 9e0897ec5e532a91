"""Compute from a run's journal where its tokens are and were, and the run's numbered events.

The journal is replayed on a separate loop, in the same way as for a run that comes back into memory. But the requests
are not carried out. So live runs need no second record of their tokens, and every replay gives the same result.

token_views.py has the kinds of events, token_log.py numbers them, and logged_machine.py logs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.errors import Misuse
from perdure.kernel.pieces import Pieces
from perdure.kernel.rows import Entry
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.compensation import BRANCH
from perdure.models.functions.context import require_loop
from perdure.models.functions.definition_outlines import Outline, read, split
from perdure.models.functions.replay import replay
from perdure.models.functions.runner import LiveRun, Mismatch
from perdure.models.graphs.logged_machine import WatchedMachine
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.rules_versions import RULES
from perdure.models.graphs.runner import GraphRunner
from perdure.models.graphs.token_log import TokenLog, waiting_joins
from perdure.models.graphs.token_views import GraphEvent, JoinTokens, NodeTokens, TokensView
from perdure.ports import Codec, new_id
from perdure.values.json import Signature

_CALLBACKS_MAX: Final = 10_000_000
TOKENS_LISTED_MAX: Final = 10_000


class _Traced:
    """The parts of a workflow that a replay needs."""

    def __init__(self, run: Run, signature: Signature, outline: Outline | None, plan: Plan) -> None:
        self.name = run.workflow
        self.version = run.workflow_version
        self.signature = signature
        self.outline = outline
        self.compensation = None
        self.machine: WatchedMachine | None = None
        self.live: LiveRun | None = None
        self._plan = plan

    async def function(self, input: Any = None) -> Any:
        loop = require_loop("a graph")
        self.machine = WatchedMachine(self._plan, input, TokenLog(self._plan, loop.now, self._entry), loop.rules)
        return await GraphRunner(self._plan, input, loop, self.machine).run()

    def _entry(self) -> int:
        return 0 if self.live is None else self.live.seq


class Trace:
    """The result of replaying a run's journal."""

    def __init__(self, run: Run, plan: Plan, machine: WatchedMachine, until: int) -> None:
        self._run = run
        self._plan = plan
        self._machine = machine
        if run.status in FINISHED and not machine.ended:
            kind: Any = "run_cancelled" if run.status is Status.CANCELLED else "run_failed"
            machine.log.close_at(until, kind, status=run.status.value)

    def tokens(self) -> TokensView:
        """Return where the tokens are and were."""
        run, machine, log = self._run, self._machine, self._machine.log
        has_ended = machine.ended or run.status in FINISHED
        standing = log.standing()
        nodes = {
            name: NodeTokens(
                standing=standing[name],
                completed=log.completions[name],
                failed=log.failures[name],
                cancelled=log.cancellations[name],
            )
            for name in self._plan.nodes
        }
        joins: tuple[JoinTokens, ...] = () if has_ended else tuple(waiting_joins(machine.root))
        return TokensView(
            run_id=run.id,
            workflow=run.workflow,
            version=run.workflow_version,
            status=run.status.value,
            nodes=nodes,
            joins=joins,
            tokens=log.listed(TOKENS_LISTED_MAX),
            tokens_total=len(log.records),
        )

    def events(self) -> Sequence[GraphEvent]:
        """Return the events of the run, in order."""
        return self._machine.log.events


def trace(
    run: Run, plan: Plan, signature: Signature, input: str, entries: Sequence[Entry], codec: Codec, payload_max: int
) -> Pieces[Trace]:
    """Replay a run's journal piece by piece. The pieces must run in plain callbacks, never inside a task. Raises Misuse
    if the journal does not fit the graph."""
    # Do not check that the run began with this graph, because the caller has chosen the graph.
    outlines, others = split(entries)
    outline = read(codec.decode(outlines[0].value or "")) if outlines else None if others else Outline(rules=RULES)
    traced = _Traced(run, signature, outline, plan)
    live = LiveRun(run, traced, codec, new_id, payload_max, _CALLBACKS_MAX)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    traced.live = live
    began = run.started_at or run.created_at
    forward = [entry for entry in others if not entry.position.startswith(BRANCH)]
    try:
        yield from replay(live, input, [*outlines, *forward], began)
    except Mismatch as error:
        raise Misuse(f"run {run.id!r} does not fit this graph: {error}") from error
    finally:
        live.close()
    last = forward[-1].at if forward else began
    machine = traced.machine or WatchedMachine(plan, None, TokenLog(plan, lambda: last, lambda: live.seq))
    return Trace(run, plan, machine, run.completed_at or last)


__all__ = ["Trace", "trace"]
