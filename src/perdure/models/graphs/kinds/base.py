"""The base of all kinds of node: their common fields, and their interface to the runner.

A kind is a part of the definition: a struct whose tag is its name. When the graph is built, `prepare` makes the work of
its node: it looks names up and parses expressions once. `begin` starts the work for one token, and returns a value
(`Done`, `Ended`), a future of a step, or a coroutine that the runner makes a task of. A coroutine makes its own
requests after it has begun, because it may be ended before that, and must then leave nothing behind.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

from perdure import errors
from perdure.errors import GraphFailed, InvalidDefinition
from perdure.models.functions.artifacts import read_result
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.graphs.context import View
from perdure.models.graphs.expressions import ROOTS, Expression
from perdure.models.graphs.mappings import ValueMap
from perdure.models.graphs.records import Pins
from perdure.models.graphs.spec import RetrySpec, Seconds, Spec, Target
from perdure.values.json import Reader, Signature
from perdure.values.retry import Retry

K = TypeVar("K", bound="type[Kind]")


class Done(Struct, frozen=True):
    """A result that is available at once. It needs no journal entry, since every replay gives the same result."""

    value: Any


class Ended(Struct, frozen=True):
    """The whole run ends here."""

    failure: GraphFailed | None = None


class Task:
    """A node to be run for one token, with everything that its work may use."""

    __slots__ = ("input", "loop", "pins", "place", "view")

    def __init__(self, loop: WorkflowLoop, input: Any, view: View, place: str, pins: Pins) -> None:
        self.loop = loop
        self.pins = pins
        self.input = input
        self.view = view
        self.place = place


class Work(Protocol):
    """The work of a node."""

    def begin(self, task: Task) -> Done | Ended | asyncio.Future[Any] | Coroutine[Any, Any, Any]:
        """Begin the work for one token. An exception is the node's failure."""


class Preparing:
    """A node that is being built. It collects the node's expressions, so that their names can be checked."""

    def __init__(
        self,
        graph: str,
        node: str,
        *,
        resolve: Callable[[str, str], Any],
        knows: Callable[[str], bool],
        input_fields: frozenset[str] | None,
        place: str | None = None,
        roots: Collection[str] = ROOTS,
        may_start: Callable[[Sequence[str]], bool] = lambda _: False,
    ) -> None:
        self.graph = graph
        self.node = node
        self.place = place or f"graph {graph!r}, node {node!r}"
        self.roots = roots  # the roots that expressions may name
        self.input_fields = input_fields  # the fields of the run's input, if they are known
        self.expressions: list[Expression] = []
        self.knows = knows  # whether an object was passed in under this name
        self.look_up = resolve  # returns the object of a reference, at a place
        self.may_start = may_start  # whether the graph may start a program: it and its arguments

    def resolve(self, reference: str, field: str) -> Any:
        """Return the object of a reference (`package.module:name`, or a name that was passed in). Raises
        InvalidDefinition."""
        return self.look_up(reference, f"{self.place}, {field}")

    def expression(self, source: str, field: str) -> Expression:
        """Raises InvalidDefinition."""
        expression = Expression(source, f"{self.place}, {field}")
        self._keep(expression)
        return expression

    def values(self, parts: Any, field: str) -> ValueMap:
        """Raises InvalidDefinition."""
        values = ValueMap(parts, f"{self.place}, {field}")
        for expression in values.expressions():
            self._keep(expression)
        return values

    def _keep(self, expression: Expression) -> None:
        for root in sorted(expression.roots):
            self.check_root(root, expression.place)
        self.expressions.append(expression)

    def check_root(self, root: str, place: str) -> None:
        """Raise InvalidDefinition if the node cannot use this root of the context."""
        if root not in self.roots:
            raise InvalidDefinition(f"{place}: {root!r} cannot be seen from here; there is {', '.join(self.roots)}")

    def anew(self, place: str | None = None) -> Preparing:
        """Return the same node, to be prepared again from the records that a run has found."""
        return Preparing(
            self.graph,
            self.node,
            resolve=self.look_up,
            knows=self.knows,
            input_fields=self.input_fields,
            place=place or self.place,
            roots=self.roots,
            may_start=self.may_start,
        )

    def wrong(self, field: str, message: str) -> InvalidDefinition:
        return InvalidDefinition(f"{self.place}, {field}: {message}")


class Kind(Spec, frozen=True, kw_only=True, tag_field="kind"):
    """The fields of every node.

    `input` maps the node's parameters to expressions. `output` maps places in the context (`state.…`, `output.…`) to
    expressions, which see the result as `nodes.<its name>`.
    """

    description: str = ""
    input: Any = None
    output: dict[Target, str] = field(default_factory=dict)
    timeout: Seconds | None = None
    retry: RetrySpec | None = None
    on_error: Literal["fail_run", "branch_error"] = "fail_run"
    otherwise: Literal["error", "end"] = "error"

    @abstractmethod
    def prepare(self, about: Preparing) -> Work:
        """Return the node's work. Raises InvalidDefinition, with the place."""

    def policy(self, otherwise: Retry, about: Preparing) -> Retry:
        """Return the node's own retry policy, or the policy of its step. Raises InvalidDefinition."""
        return otherwise if self.retry is None else retry_of(self.retry, about)

    def refuse(self, about: Preparing, *fields: Literal["input", "retry", "timeout"]) -> None:
        """Raise InvalidDefinition if the node has one of these fields, which its kind cannot use."""
        for name in fields:
            if getattr(self, name) is not None:
                tag = str(type(self).__struct_config__.tag)
                raise about.wrong(name, f"{'an' if tag[0] in 'aeiou' else 'a'} {tag} node has none")


KINDS: dict[str, type[Kind]] = {}


def kind(cls: K) -> K:
    """Register a kind of node by its tag."""
    name = cls.__struct_config__.tag
    if not isinstance(name, str):
        raise InvalidDefinition(f"a kind has a name: class {cls.__name__}(Kind, tag=…)")
    if cls.prepare is Kind.prepare:
        raise InvalidDefinition(f"the kind of node {name!r} does not say what its nodes do: give it a prepare()")
    known = KINDS.get(name)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise InvalidDefinition(f"there is a kind of node {name!r} already")
    KINDS[name] = cls
    return cls


def retry_of(spec: RetrySpec, about: Preparing) -> Retry:
    """Return the retry policy of a definition. Raises InvalidDefinition, with the place."""
    retry_on = _exceptions(spec.retry_on, about, "retry.retry_on")
    give_up_on = _exceptions(spec.give_up_on, about, "retry.give_up_on")
    # A default maximum must not limit a given initial pause.
    is_given = spec.maximum != RetrySpec().maximum
    try:
        return Retry(
            attempts=spec.attempts,
            initial=min(spec.initial, spec.maximum) if is_given else spec.initial,
            maximum=spec.maximum if is_given else None,
            multiplier=spec.multiplier,
            jitter=spec.jitter,
            backoff=spec.backoff,
            retry_on=retry_on or (Exception,),
            give_up_on=give_up_on,
        )
    except InvalidDefinition as error:
        raise about.wrong("retry", str(error)) from error


def _exceptions(references: Sequence[str], about: Preparing, field: str) -> tuple[type[BaseException], ...]:
    found: list[type[BaseException]] = []
    for number, reference in enumerate(references):
        place = f"{field}[{number}]"
        one = plain_exception(reference)
        if one is None:
            one = about.resolve(reference, place)
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise about.wrong(place, f"{reference!r} is no class of exceptions but {one!r:.80}")
        found.append(one)
    return tuple(found)


def plain_exception(name: str) -> Any:
    """Return the exception class of Python's or Perdure's own that has this bare name; None if there is none."""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


class PlainReader(Reader):
    """Checks that a text fits a type, and returns it in JSON's own types."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def read(self, text: str, what: str) -> Any:
        self._inner.read(text, what)
        return msgspec.json.decode(text)


class StepResultReader(PlainReader):
    """Does the same for a step's result. Returns a Brought if the result includes artifacts that the step has
    staged."""

    __slots__ = ()

    def read(self, text: str, what: str) -> Any:
        plain, staged = read_result(text)
        value = super().read(plain, what)
        return value if plain is text else Brought(value, staged)


class Brought(msgspec.Struct, frozen=True):
    """A node's result, and the ids of the artifacts that its step has staged, by name."""

    value: Any
    staged: dict[str, str]


class PlainResult(Signature):
    """A signature whose results have JSON's own types, as all values in a graph's context do."""

    tells_staged = True

    def __init__(self, inner: Signature) -> None:
        self.__dict__.update({name: value for name, value in vars(inner).items() if name != "result"})

    @cached_property
    def result(self) -> Reader:
        return StepResultReader(self._resolve()[0])
