"""Define graphs: the builder, and definitions in YAML or JSON. A graph is a workflow like any other. Calling it returns
a call that an engine can start, or that another workflow can await.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from perdure.errors import InvalidDefinition, NotInWorkflow
from perdure.kernel.pieces import Pieces
from perdure.kernel.rows import Entry
from perdure.kernel.runs import Run
from perdure.models.functions.define import RunCall, Step, Workflow, forget
from perdure.models.functions.definition_outlines import Outline
from perdure.models.functions.loop import running_loop
from perdure.models.graphs import schemas, texts
from perdure.models.graphs.build import build
from perdure.models.graphs.builder_functions import Bound, NodeName, NodeRef, named, reference_of, seconds
from perdure.models.graphs.fingerprint import fingerprint_of, outline_of
from perdure.models.graphs.kinds import Child, Function, Kind
from perdure.models.graphs.kinds.base import plain_exception
from perdure.models.graphs.kinds.function import as_step
from perdure.models.graphs.mermaid import mermaid
from perdure.models.graphs.picture import picture_of
from perdure.models.graphs.places import Lines, invalid
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.references import by_name, resolve
from perdure.models.graphs.runner import interpret
from perdure.models.graphs.spec import EdgeSpec, ExclusiveSpec, GraphLimits, GraphSpec, JoinSpec, MergeSpec, RetrySpec
from perdure.models.graphs.stored_definitions import StoredDefinition, digest_of, readable, stored
from perdure.models.graphs.svg import svg
from perdure.models.graphs.token_views import TokensView
from perdure.models.graphs.trace import Trace, trace
from perdure.ports import Codec
from perdure.values.arguments import Duration, calling_frame, checked, shown
from perdure.values.json import ANY_SIZE, Signature, to_text
from perdure.values.retry import Retry

I = TypeVar("I")  # noqa: E741 - a graph's input
O = TypeVar("O")  # noqa: E741 - and its output

X = TypeVar("X")

_MISSING: Any = object()


@checked(error=InvalidDefinition)
class Graph(Workflow[..., O], Generic[I, O]):
    """A workflow as a graph. Nodes do something, and edges say which node comes next.

    Build it with `node` and `edge`. It is checked at its first use or by `build`. After that it cannot change. A run
    keeps the version of the graph with which it was started.
    """

    model = "graph"

    @overload
    def __init__(
        self: Graph[Any, Any],
        name: str,
        *,
        input: Mapping[str, Any] | str | None = None,
        output: Mapping[str, Any] | str | None = None,
        version: str = "",
        description: str = "",
        start: str | None = None,
        timeout: Duration | None = None,
        limits: GraphLimits | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        input: type[I],
        output: type[O],
        version: str = "",
        description: str = "",
        start: str | None = None,
        timeout: Duration | None = None,
        limits: GraphLimits | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, Any],
        name: str,
        *,
        input: type[X],
        version: str = "",
        description: str = "",
        start: str | None = None,
        timeout: Duration | None = None,
        limits: GraphLimits | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[Any, X],
        name: str,
        *,
        output: type[X],
        version: str = "",
        description: str = "",
        start: str | None = None,
        timeout: Duration | None = None,
        limits: GraphLimits | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        input: Any = None,
        output: Any = None,
        version: str = "",
        description: str = "",
        start: str | None = None,
        timeout: Duration | None = None,
        limits: GraphLimits | None = None,
    ) -> None:
        """`input` and `output` are the types or JSON Schemas of a run's input and output. Perdure checks both.
        `timeout` bounds a whole run. The run begins at the node `start`. The default is the first node.
        """
        draft = Draft(name, version=version, description=description, start=start)
        draft.timeout = seconds(timeout)
        draft.limits = limits
        draft.types = {"input": input, "output": output}
        self._define(draft, 2)

    def _define(self, draft: Draft, depth: int) -> None:
        frame = calling_frame(depth)
        self._where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._draft = draft

        # The function refers to the draft and not to the graph, so that an unused graph is freed at once.
        async def run(input: Any = None) -> Any:
            if running_loop() is None:
                raise NotInWorkflow(f"graph {draft.name!r} is run by an engine, as in engine.run(graph(…))")
            return await interpret(draft.built(), input)

        run.__qualname__ = run.__name__ = draft.name
        run.__doc__ = draft.description or None
        super().__init__(run, name=draft.name, version=draft.version, signature=GraphSignature(run, draft))

    # Building.

    def node(
        self,
        name: str,
        does: Any,
        *,
        input: Any = None,
        output: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        on_error: Literal["fail_run", "branch_error"] | None = None,
        otherwise: Literal["error", "end"] | None = None,
        description: str | None = None,
    ) -> NodeRef:
        """Add a node. It runs a step, a function (as a step), a workflow (as a child), or a kind of node.

        `input` maps the node's parameters to expressions. A parameter without a mapping gets the field of the run's
        input that has its name. `output` maps places in the context (`state.…`, `output.…`) to expressions that see the
        result. If the node fails for good, the token follows its edges with `on_error`. Without such an edge, the run
        fails. With `branch_error`, only the branch fails, and its join gets the error. Raises InvalidDefinition.
        """
        draft = self._open()
        if name in draft.nodes:
            raise InvalidDefinition(f"{draft.place}, node {name!r}: there are two of this name")
        kind = draft.kind_of(does, f"{draft.place}, node {name!r}")
        given = {
            "input": input,
            "output": None if output is None else dict(output),
            "timeout": seconds(timeout),
            "retry": None if retry is None else draft.retry_spec(retry, f"{draft.place}, node {name!r}"),
            "on_error": on_error,
            "otherwise": otherwise,
            "description": description,
        }
        draft.nodes[name] = msgspec.structs.replace(
            kind, **{key: value for key, value in given.items() if value is not None}
        )
        return NodeRef(name)

    def edge(
        self,
        source: NodeName | Iterable[NodeName],
        target: NodeName,
        *,
        when: str | None = None,
        priority: int = 0,
        on_error: bool = False,
        foreach: str | None = None,
        spawn: int | None = None,
        at_once: int | None = None,
        limit: int | Literal["unlimited"] | None = None,
        limit_timeout: Duration | None = None,
        join: JoinSpec | None = None,
        merge: MergeSpec | Bound | Iterable[MergeSpec | Bound] = (),
        cancel: NodeName | Iterable[NodeName] = (),
    ) -> None:
        """Add an edge from one node, or one edge from each of several nodes. See `EdgeSpec`."""
        draft = self._open()
        merges = [draft.bound(one) for one in ([merge] if isinstance(merge, MergeSpec | Bound) else merge)]
        sources = [named(source)] if isinstance(source, NodeRef | str) else [named(one) for one in source]
        cancelled = [cancel] if isinstance(cancel, NodeRef | str) else cancel
        draft.edges.append(
            EdgeSpec(
                source=sources[0] if len(sources) == 1 else sources,
                target=named(target),
                when=when,
                priority=priority,
                on_error=on_error,
                foreach=foreach,
                spawn=spawn,
                at_once=at_once,
                limit=limit,
                limit_timeout=seconds(limit_timeout),
                join=join,
                merge=merges[0] if len(merges) == 1 else merges,
                cancel=[named(one) for one in cancelled],
            )
        )

    def exclusive(self, nodes: NodeName | Iterable[NodeName], *, keep: bool = False) -> None:
        """Allow only one token of a run at a time at any of these nodes.

        Other tokens wait for their turn, in the order in which they arrive. A turn ends when the node ends. With
        `keep`, a turn ends when the token moves to a node that is not in the list.
        """
        names = [nodes] if isinstance(nodes, NodeRef | str) else nodes
        self._open().exclusive.append(ExclusiveSpec(nodes=[named(one) for one in names], keep=keep))

    def output(self, mapping: Any) -> None:
        """Set the run's output: a mapping of names to expressions.

        The default output is the object that nodes have written to `output`.
        """
        self._open().output = mapping

    def _open(self) -> Draft:
        if self._draft.plan is not None:
            raise InvalidDefinition(f"{self._draft.place} is in use, and can no longer be changed; make a new version")
        return self._draft

    def build(self) -> Graph[I, O]:
        """Check the definition and make it final.

        Raises InvalidDefinition, which lists all `problems` with their places.
        """
        try:
            self._draft.built()
        except Exception:
            forget(self)  # A graph with problems cannot run, and its author gets the error here.
            raise
        return self

    # Texts.

    @classmethod
    def parse(cls, text: str, *, objects: Mapping[str, Any] | Iterable[Any] | None = None) -> Graph[Any, Any]:
        """Read a graph from YAML or JSON.

        The text names steps, workflows, exceptions and data types as `package.module:name`. Their modules must be
        imported already; Perdure imports nothing for a text. `objects` are functions, reducers and other objects that
        the text may name. Pass a list, to use their own names, or a dict. An mcp node starts a program only if the dict
        has it, as a list of the program and all its arguments. Raises InvalidDefinition.
        """
        return cls._parsed(text, "this graph", objects)

    @classmethod
    def load(cls, path: str | Path, *, objects: Mapping[str, Any] | Iterable[Any] | None = None) -> Graph[Any, Any]:
        """Read a graph from a file with YAML or JSON, as `parse` does. Raises InvalidDefinition, OSError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except ValueError as error:  # The path has a NUL, or the file is not UTF-8.
            raise InvalidDefinition(f"load(): {shown(path)} cannot be read as a text: {error}") from None
        return cls._parsed(text, str(path), objects)

    @classmethod
    def _parsed(cls, text: str, place: str, objects: Mapping[str, Any] | Iterable[Any] | None) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = cls.__new__(cls)
        spec, nodes, lines = texts.parse(text, place)
        draft = Draft.of(spec, nodes, by_name(objects, place))
        draft.lines, draft.is_text = lines, True
        graph._define(draft, 3)
        return graph.build()

    def dump(self, form: texts.Form = "yaml") -> str:
        """Return the definition as a text that `parse` can read. Functions are written as `package.module:name`."""
        return texts.dump(self.definition, form)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema of definitions. It covers all kinds of node that are registered now."""
        return texts.json_schema()

    # Pictures.

    def to_mermaid(self, tokens: TokensView | None = None) -> str:
        """Return a Mermaid flowchart. With the tokens of a run (`await run.tokens()`), it shows where they are and
        where they were. Raises InvalidDefinition.
        """
        return mermaid(picture_of(self._draft_built(), self.definition.nodes, tokens, forks=False))

    def to_svg(self, tokens: TokensView | None = None) -> str:
        """Return a complete SVG file. With the tokens of a run (`await run.tokens()`), it shows where they are and
        where they were. Raises InvalidDefinition, and Misuse if the graph is too large for a picture.
        """
        return svg(picture_of(self._draft_built(), self.definition.nodes, tokens, forks=True), self.name)

    def _draft_built(self) -> Plan:
        return self.build()._draft.built()

    # A graph as a workflow.

    def __call__(self, input: I = _MISSING, /) -> RunCall[O]:
        """Return a call, which an engine can start or a workflow can await. Raises InvalidDefinition,
        InvalidArguments.
        """
        self.build()
        args = () if input is _MISSING else (input,)
        self.signature.check(args, {})
        return RunCall(self, args, {})

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the definition. The hash does not depend on whether the graph was written in Python, YAML or
        JSON.
        """
        return fingerprint_of(self.definition, self.outline)

    @cached_property
    def outline(self) -> Outline:
        """Return the outline of the definition. Runs keep the outline to notice changes of the definition. It covers
        everything except descriptions, limits and retry policies. Raises InvalidDefinition.
        """
        return outline_of(self.definition, self._draft_built(), self._draft.usual_name, self.digest)

    @property
    def where(self) -> str:
        return self._where

    @property
    def definition(self) -> GraphSpec:
        """The definition as data. Raises InvalidDefinition."""
        definition = self.build()._draft.checked
        assert definition is not None
        return definition

    @property
    def digest(self) -> str:
        """The digest that identifies the definition. Runs refer to their definition by this digest. Raises
        InvalidDefinition.
        """
        return self.build()._draft.digest

    def kept(self) -> StoredDefinition:
        """Return the graph in the form in which the store keeps it. Raises InvalidDefinition."""
        return stored(self.definition, self._draft.objects)

    @classmethod
    def read_back(cls, kept: StoredDefinition) -> Graph[Any, Any]:
        """Return a graph from its stored definition.

        The graph can be drawn and can show tokens, but it cannot run. Raises InvalidDefinition.
        """
        graph: Graph[Any, Any] = cls.__new__(cls)
        graph._define(Draft.of(*readable(kept)), 2)
        forget(graph)
        return graph.build()

    def trace(self, run: Run, input: str, entries: Sequence[Entry], codec: Codec, payload_max: int) -> Pieces[Trace]:
        """Compute from a run's journal where its tokens are and were, and which events happened.

        The pieces must run in plain callbacks of the event loop, as in `run.tokens()`. Raises InvalidDefinition. Raises
        Misuse if the journal does not fit the graph.
        """
        return trace(run, self._draft_built(), self.signature, input, entries, codec, payload_max)

    def __repr__(self) -> str:
        return f"<graph {self.name!r} at {self.where}>"


class Draft:
    """A definition that is being built. It is final once it has a plan."""

    def __init__(self, name: str, *, version: str = "", description: str = "", start: str | None = None) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.start = start
        self.place = f"graph {name!r}"
        self.timeout: float | None = None
        self.limits: GraphLimits | None = None
        self.types: dict[str, Any] = {}
        self.nodes: dict[str, Kind] = {}
        self.edges: list[EdgeSpec] = []
        self.exclusive: list[ExclusiveSpec] = []
        self.output: Any = None
        self.objects: dict[str, Any] = {}
        self.is_text = False  # True if the author of the text may be a person who must not run code in this process
        self.lines: Lines | None = None  # the lines of its parts, if the text is YAML
        self.checked: GraphSpec | None = None
        self.plan: Plan | None = None

    @classmethod
    def of(cls, spec: GraphSpec, nodes: Mapping[str, Kind], objects: Mapping[str, Any]) -> Draft:
        draft = cls(spec.graph, version=spec.version, description=spec.description, start=spec.start)
        draft.timeout, draft.limits, draft.output = spec.timeout, spec.limits, spec.output
        draft.types = {"input": spec.input_schema, "output": spec.output_schema}
        draft.nodes, draft.edges, draft.objects = dict(nodes), spec.edges, dict(objects)
        draft.exclusive = spec.exclusive
        return draft

    def spec(self) -> GraphSpec:
        return GraphSpec(
            graph=self.name,
            version=self.version,
            description=self.description,
            start=self.start,
            input_schema=self._schema("input"),
            output_schema=self._schema("output"),
            nodes=self.nodes,
            edges=self.edges,
            exclusive=self.exclusive,
            output=self.output,
            timeout=self.timeout,
            limits=self.limits,
        )

    def built(self) -> Plan:
        """Raises InvalidDefinition."""
        if self.plan is None:
            try:
                self.checked, kinds = texts.checked(self._parts(), self.place)
                fields = _field_names(self.type_of("input"))
                self.plan = build(self.checked, kinds, self.objects, fields, self.may_start)
            except InvalidDefinition as error:
                if self.lines is None:
                    raise
                raise invalid(getattr(error, "problems", [str(error)]), self.lines) from error
        return self.plan

    def may_start(self, command: Sequence[str]) -> bool:
        """Whether a node may start this program. A graph in Python may start any program. A text may start only a
        program that was passed in with exactly these arguments.
        """
        handed_in = (one for one in self.objects.values() if isinstance(one, list | tuple))
        return not self.is_text or any(list(one) == list(command) for one in handed_in)

    def _parts(self) -> Any:
        try:
            return msgspec.to_builtins(self.spec())
        except RecursionError:
            raise InvalidDefinition(
                f"{self.place}: it nests too deeply, or something in it has itself inside"
            ) from None

    @cached_property
    def digest(self) -> str:
        """The digest that identifies the built definition."""
        assert self.checked is not None
        return digest_of(self.checked)

    def type_of(self, which: str) -> Any:
        """The type of the input or the output. Raises InvalidDefinition."""
        given = self.types.get(which)
        if given is None:
            return Any
        if isinstance(given, str):
            return resolve(given, f"{self.place}, {which}_schema", self.objects)
        if isinstance(given, Mapping):
            return schemas.type_of(given, f"{self.place}, {which}_schema")
        return given

    def has_schema(self, which: str) -> bool:
        return isinstance(self.types.get(which), Mapping)

    def _schema(self, which: str) -> Any:
        given = self.types.get(which)
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, Mapping):
            return dict(given)
        if isinstance(given, type) and not typing.get_args(given) and given.__module__ != "builtins":
            return self._bind(f"{given.__module__}:{given.__qualname__}", given)
        try:
            return msgspec.json.schema(given)
        except TypeError as error:
            raise InvalidDefinition(f"{self.place}, {which}: {error}") from error

    def kind_of(self, does: Any, place: str) -> Kind:
        """Return the kind of a node from the object that was passed to the builder."""
        if isinstance(does, Kind):
            return does
        if isinstance(does, Bound):
            kind: Kind = self.bound(does)
            return kind
        if isinstance(does, Workflow):
            return Child(workflow=self._bind(reference_of(does), does))
        step: Step[Any, Any] = as_step(does, place, 3)
        return Function(function=self._bind(reference_of(step), step))

    def bound(self, part: Any) -> Any:
        if not isinstance(part, Bound):
            return part
        reference = self._bind(part.reference, part.found)
        return msgspec.structs.replace(part.part, **{part.field: reference})

    def retry_spec(self, policy: Retry, place: str) -> RetrySpec:
        """Return a retry policy as a part of the definition. Raises InvalidDefinition."""
        if policy.recoverable is not None or policy.delay is not None:
            raise InvalidDefinition(
                f"{place}, retry: a definition has no room for a policy's functions; give the step the policy, with "
                "@step(retry=…)"
            )
        return RetrySpec(
            attempts=policy.attempts,
            initial=policy.initial_s,
            maximum=policy.maximum_s,
            multiplier=policy.multiplier,
            jitter=policy.jitter,
            backoff=policy.backoff,
            retry_on=[] if policy.retry_on == (Exception,) else [self._exception(one) for one in policy.retry_on],
            give_up_on=[self._exception(one) for one in policy.give_up_on],
        )

    def _exception(self, found: type[BaseException]) -> str:
        """Return the text by which a definition refers to an exception class."""
        name = found.__qualname__
        if plain_exception(name) is found:
            return name
        return self._bind(f"{found.__module__}:{found.__qualname__}", found)

    def usual_name(self, reference: str) -> str:
        """Return the default name by which a definition refers to an object."""
        found = self.objects.get(reference)
        if isinstance(found, type):
            return f"{found.__module__}:{found.__qualname__}"
        is_named = isinstance(found, Step | Workflow) or inspect.isfunction(found)
        return reference_of(found) if is_named else reference

    def _bind(self, reference: str, found: Any) -> str:
        """Keep an object under its reference. If another object has the same name, add a number to the name."""
        name, number = reference, 1
        while self.objects.setdefault(name, found) is not found:
            known = self.objects[name]
            if isinstance(known, Step) and isinstance(found, Step) and known.function is found.function:
                break
            number += 1
            name = f"{reference}#{number}"
        return name


class GraphSignature(Signature):
    """The input and the output of a graph. Each is one value, of a type or a schema."""

    def __init__(self, function: Any, draft: Draft) -> None:
        self._draft = draft
        if draft.types.get("input") is not None:
            function.__defaults__ = None
        super().__init__(function, f"graph {draft.name!r}", {})

    def read(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the input and return it in JSON's own types."""
        args, kwargs = super().read(text)
        if not args or self._draft.types.get("input") is None:
            return args, kwargs
        if self._draft.has_schema("input"):
            return (msgspec.json.decode(text)["input"],), {}
        return (msgspec.json.decode(to_text(args[0], self.about_input, ANY_SIZE)),), {}

    def _resolve(self) -> Any:
        if self._readers is None:
            self._function.__annotations__ = {
                "input": self._draft.type_of("input"),
                "return": self._draft.type_of("output"),
            }
        return super()._resolve()


def _field_names(wanted: Any) -> frozenset[str] | None:
    """Return the names of a type's fields, or None if they are not known."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return frozenset(field.encode_name for field in msgspec.structs.fields(wanted))
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return frozenset(field.name for field in dataclasses.fields(wanted))
    return None
