"""The engine's verbs for looking at runs of graphs: their tokens, events, definitions and pictures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from perdure.arguments import checked
from perdure.errors import Misuse, RunNotFound
from perdure.kernel.records import Entry, Run
from perdure.models.functions.checks import checked_text
from perdure.ports import Codec, Store
from perdure.registry import Registry, named

if TYPE_CHECKING:
    from perdure.models.graphs.define import Graph
    from perdure.models.graphs.stored import DefinitionView, StoredDefinition
    from perdure.models.graphs.token_views import GraphEvents, TokensView
    from perdure.models.graphs.tracing import Trace

Journal = tuple[str, list[Entry]]  # a run's input, and what it did
_EVENTS_MAX: Final = 10_000


@checked
class GraphRuns:
    """What an engine that has these parts can tell of runs of graphs, its own and others'.

    Each run remembers the definition that it was started or last retried with, and the store keeps it. So a run is told
    of by its own definition, whether the code has changed since or is not here at all; the code is what counts for runs
    that remember none.
    """

    _patient_store: Store
    _codec: Codec
    _workflows: Registry
    _payload_bytes_max: int

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    async def tokens(self, id: str, *, graph: Graph[Any, Any] | None = None) -> TokensView:
        """Where the tokens of a run of a graph are and were, while it lives and after, each with its path and state: to
        be looked at, or for `graph.to_svg(tokens)`. The run's own definition counts, the one that it
        was started with, unless a graph is given.

        Raises RunNotFound; Misuse if the run is none of a graph, or of another one.
        """
        return (await self._trace(id, graph)).tokens()

    async def graph_events(
        self, id: str, *, after: int = 0, limit: int = 1000, graph: Graph[Any, Any] | None = None
    ) -> GraphEvents:
        """What happened in a run of a graph: tokens that came to be, moved along edges, met and ended, and what nodes
        did. The events are numbered from 1 on, and told from the journal: the same ones each time, and more as the run
        goes on. `after` is the number of the last one that you have. Raises as `tokens`, and Misuse for a limit that is
        none."""
        if not 1 <= limit <= _EVENTS_MAX or after < 0:
            raise Misuse(f"limit is between 1 and {_EVENTS_MAX:,}, and after at least 0, not {limit} and {after}")
        return (await self._trace(id, graph)).events(after, limit)

    async def _trace(self, id: str, graph: Graph[Any, Any] | None) -> Trace:
        """Raises RunNotFound, Misuse."""
        return await self._traced(*await self._graph_of(id, graph))

    async def _traced(self, run: Run, graph: Graph[Any, Any], journal: Journal) -> Trace:
        """Raises Misuse if the journal does not fit."""
        input, entries = journal
        done: asyncio.Future[Trace] = asyncio.get_running_loop().create_future()

        tracing = graph.trace(run, input, entries, self._codec, self._payload_bytes_max)

        def trace() -> None:  # A replay has tasks of its own, so it cannot happen inside another's.
            if done.cancelled():
                tracing.close()
                return
            try:
                next(tracing)
            except StopIteration as told:
                done.set_result(told.value)
            except Exception as error:  # noqa: BLE001 - it is raised where it is asked for
                done.set_exception(error)
            else:
                asyncio.get_running_loop().call_soon(trace)

        asyncio.get_running_loop().call_soon(trace)
        return await done

    async def drawing(
        self,
        id: str,
        form: Literal["svg", "mermaid"] = "svg",
        *,
        graph: Graph[Any, Any] | None = None,
        tokens: TokensView | None = None,
    ) -> str:
        """A picture of a run's graph with its tokens, as SVG or as a Mermaid flowchart. Whoever has the tokens already
        hands them in, which saves a replay. Raises as `tokens`."""
        run, found, journal = await self._graph_of(id, graph)
        if tokens is None:
            tokens = (await self._traced(run, found, journal)).tokens()
        return found.to_svg(tokens) if form == "svg" else found.to_mermaid(tokens)

    async def definition(self, id: str) -> DefinitionView:
        """The definition that a run of a graph was started with, or last retried with, as JSON: it can be read back
        when the code has changed since. A run of which nothing is stored yet but its start has that of the code. Raises
        RunNotFound; Misuse if the run is none of a graph, or its definition is nowhere."""
        from perdure.models.graphs.stored import DefinitionView

        run, digest, _ = await self._graph_run(id)
        code = self._code(run)
        if digest is None or (code is not None and code.digest == digest):
            if code is None:
                raise self._unknown(run)
            definition, digest = code.kept().definition, code.digest
        else:
            definition = (await self._stored_definition(run, digest)).definition
        return DefinitionView(
            run_id=id,
            workflow=run.workflow,
            version=run.workflow_version,
            digest=digest,
            is_current=None if code is None else code.digest == digest,
            definition=definition,
        )

    # Where a run's graph is found.

    async def _graph_run(self, id: str) -> tuple[Run, str | None, Journal]:
        """A run, the digest of its definition if it remembers one, and its journal. Raises RunNotFound, Misuse."""
        self._check_open()
        stored = (await self._patient_store.get([checked_text(id, "a run's id")])).get(id)
        if stored is None:
            raise RunNotFound(id)
        journal = await self._patient_store.journal(id)
        digest = await self._digest(id, journal)
        # Who starts a run by its name alone does not know that it is a graph's: the code does, and so does the run.
        if stored.run.model != "graph" and self._code(stored.run) is None and digest is None:
            raise Misuse(f"run {id!r} is of a {stored.run.model}: only those of graphs have tokens")
        return stored.run, digest, journal

    async def _graph_of(self, id: str, graph: Graph[Any, Any] | None) -> tuple[Run, Graph[Any, Any], Journal]:
        """A run, the graph that it is of, and its journal. Raises RunNotFound, Misuse."""
        from perdure.models.graphs.define import Graph

        if graph is not None:
            run = await self._run_of(id, graph)
            return run, graph, await self._patient_store.journal(id)
        run, digest, journal = await self._graph_run(id)
        code = self._code(run)
        if code is not None and (digest is None or code.digest == digest):
            return run, code, journal
        if digest is None:
            raise self._unknown(run)
        return run, Graph.read_back(await self._stored_definition(run, digest)), journal

    async def _run_of(self, id: str, graph: Graph[Any, Any]) -> Run:
        """A run of a graph that was handed in. Raises RunNotFound, Misuse."""
        self._check_open()
        stored = (await self._patient_store.get([checked_text(id, "a run's id")])).get(id)
        if stored is None:
            raise RunNotFound(id)
        run = stored.run
        if (graph.name, graph.version) != (run.workflow, run.workflow_version) or graph.model != "graph":
            raise Misuse(f"run {id!r} is of {named(run.workflow, run.workflow_version)}, not of {graph!r}")
        return run

    def _code(self, run: Run) -> Graph[Any, Any] | None:
        found: Any = self._workflows.get((run.workflow, run.workflow_version))
        return None if found is None or found.model != "graph" else found

    def _unknown(self, run: Run) -> Misuse:
        which = named(run.workflow, run.workflow_version)
        return Misuse(f"run {run.id!r} is of {which}, which is not known here; hand it in: tokens(id, graph=…)")

    async def _digest(self, id: str, journal: Journal) -> str | None:
        """The digest of the definition that a run was started or last retried with, if it remembers one."""
        from perdure.models.functions.outlines import read, split
        from perdure.models.graphs.stored import KEY

        for entry in split(journal[1])[0][:1]:  # The newest comes first.
            if digest := read(self._codec.decode(entry.value or "")).digest:
                return digest
        found = await self._patient_store.published(id, KEY)
        return msgspec.json.decode(self._codec.decode(found[0].value), type=str) if found else None

    async def _stored_definition(self, run: Run, digest: str) -> StoredDefinition:
        """Raises Misuse."""
        from perdure.models.graphs.stored import RECORD_KIND, StoredDefinition

        found = await self._patient_store.record(RECORD_KIND, digest, None)
        if found is None:
            raise Misuse(f"the definition of run {run.id!r} ({digest}) is not in the store; hand the graph in: graph=…")
        return msgspec.json.decode(self._codec.decode(found.body), type=StoredDefinition)


__all__ = ["GraphRuns"]
