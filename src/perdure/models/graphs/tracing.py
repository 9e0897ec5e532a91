"""Where the tokens of a run are and where they were, from its journal: for people, and for pictures.

The journal is replayed on a loop of its own, as for a run that comes back to life; nothing that it asks for is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.errors import Misuse
from perdure.kernel.records import Entry, Run
from perdure.kernel.status import FINISHED
from perdure.models.functions.context import require_loop
from perdure.models.functions.runner import LiveRun, Mismatch
from perdure.models.functions.values import Signature
from perdure.models.graphs.machine import Decisions, Machine
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.runner import GraphRunner
from perdure.models.graphs.tokens import Fork
from perdure.ports import Codec, new_id

_CALLBACKS_MAX = 10_000_000


class NodeTokens(Struct, frozen=True, kw_only=True):
    """How many tokens stand at a node, and how many have left it: with a result, with a failure, or cancelled."""

    standing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class JoinTokens(Struct, frozen=True, kw_only=True):
    """A join that waits: where it leads, at which node its branches came apart, how many of them have arrived."""

    target: str
    fork: str
    arrived: int
    branches: int


class TokensView(Struct, frozen=True, kw_only=True):
    """The tokens of a run of a graph, as of its last journal entry. Of a run that has ended none stands anywhere."""

    run_id: str
    workflow: str
    version: str
    status: str
    nodes: Mapping[str, NodeTokens]
    joins: Sequence[JoinTokens]


class Watched(Machine):
    """A machine that remembers where its tokens were."""

    def __init__(self, plan: Plan, input: Any) -> None:
        super().__init__(plan, input)
        self.begun: dict[int, str] = {}  # the nodes that run, by token
        self.completions: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.cancellations: Counter[str] = Counter()

    def completed(self, token_id: int, value: Any) -> Decisions:
        self._left(token_id, self.completions)
        return super().completed(token_id, value)

    def failed(self, token_id: int, error: BaseException, about: dict[str, Any]) -> Decisions:
        self._left(token_id, self.failures)
        return super().failed(token_id, error, about)

    def terminate(self, token_id: int, error: Any = None) -> Decisions:
        self._left(token_id, self.completions if error is None else self.failures)
        return super().terminate(token_id, error)

    def _left(self, token_id: int, how: Counter[str]) -> None:
        if (node := self.begun.pop(token_id, None)) is not None:
            how[node] += 1

    def _decided(self) -> Decisions:
        decided = super()._decided()
        for token_id in decided.cancel:
            self._left(token_id, self.cancellations)
        self.begun.update((token.id, token.node) for token in decided.run)
        return decided

    def standing(self) -> Counter[str]:
        """How many tokens stand at each node: those whose node runs, and those that wait for their turn there."""
        turns = self._turns
        queued = () if turns is None else (one.node for one in self.tokens.values() if turns.is_waiting(one))
        return Counter(self.begun.values()) + Counter(queued)

    def waiting(self) -> Iterator[JoinTokens]:
        """The joins at which somebody has arrived and that have not gone on."""
        forks: list[Fork] = [self._root]
        while forks:
            fork = forks.pop()
            forks += reversed(fork.inner.values())
            for meeting in fork.meetings.values():
                if not meeting.fired:
                    yield JoinTokens(
                        target=meeting.join.target, fork=fork.site, arrived=len(meeting.arrived), branches=fork.total
                    )


class _Traced:
    """As much of a workflow as a replay needs."""

    def __init__(self, name: str, signature: Signature, plan: Plan) -> None:
        self.name = name
        self.signature = signature
        self.compensation = None
        self.machine: Watched | None = None
        self._plan = plan

    async def function(self, input: Any = None) -> Any:
        self.machine = Watched(self._plan, input)
        return await GraphRunner(self._plan, input, require_loop("a graph"), self.machine).run()


def trace(
    run: Run, plan: Plan, signature: Signature, input: str, entries: Sequence[Entry], codec: Codec, payload_max: int
) -> TokensView:
    """Go through a run's journal. Must be called from a plain callback, never inside a task. Raises Misuse if the
    journal does not fit the graph."""
    traced = _Traced(run.workflow, signature, plan)
    live = LiveRun(run, traced, codec, new_id, payload_max, _CALLBACKS_MAX)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        live.replay(input, entries, run.started_at or run.created_at)
    except Mismatch as error:
        raise Misuse(f"run {run.id!r} does not fit this graph: {error}") from error
    finally:
        live.close()
    machine = traced.machine or Watched(plan, None)
    has_ended = machine.ended or run.status in FINISHED
    standing = machine.standing()
    cancelled = machine.cancellations
    if has_ended:
        cancelled, standing = cancelled + standing, Counter()
    nodes = {
        name: NodeTokens(
            standing=standing[name],
            completed=machine.completions[name],
            failed=machine.failures[name],
            cancelled=cancelled[name],
        )
        for name in plan.nodes
    }
    return TokensView(
        run_id=run.id,
        workflow=run.workflow,
        version=run.workflow_version,
        status=run.status.value,
        nodes=nodes,
        joins=() if has_ended else tuple(machine.waiting()),
    )
