"""The base of all kinds of node: the fields that they share, and their interface to the runner.

A kind is a part of the definition. It is a struct whose tag is the name of the kind. When the graph is built, `prepare`
returns the work of the node. It looks up names and parses expressions once. `begin` starts the work for one token. It
returns a value (`Done`, `Ended`), the future of a step, or a coroutine. The runner makes a task from the coroutine. A
coroutine must not make requests before it has begun. It may be ended before that, and then nothing may be left behind.
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
    """A result that is known at once. It needs no journal entry, because every replay gives the same result."""

    value: Any


class Ended(Struct, frozen=True):
    """The whole run ends at this node."""

    failure: GraphFailed | None = None


class Task:
    """A node that runs for one token, with everything that its work may use."""

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
        """Begin the work for one token. If it raises an exception, the node has failed."""


class Preparing:
    """A node that is being built. It collects the node's expressions, so that the names in them can be checked."""

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
        self.knows = knows  # returns whether an object was passed in under this name
        self.look_up = resolve  # returns the object of a reference; takes the reference and its place
        # returns whether the graph may start a program; takes the program with its arguments
        self.may_start = may_start

    def resolve(self, reference: str, field: str) -> Any:
        """Return the object of a reference. A reference is `package.module:name`, or a name that was passed in. Raises
        InvalidDefinition.
        """
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
        """Return a copy of this node's preparation. The run prepares the node again from the records that it has
        found.
        """
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
    """The fields that every node has.

    `input` maps the node's parameters to expressions. `output` maps places in the context (`state.…`, `output.…`) to
    expressions. These expressions see the result as `nodes.<name of the node>`.
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
        """Return the node's work. Raises InvalidDefinition; the message names the place."""

    def policy(self, otherwise: Retry, about: Preparing) -> Retry:
        """Return the node's own retry policy, or the policy of its step. Raises InvalidDefinition."""
        return otherwise if self.retry is None else retry_of(self.retry, about)

    def refuse(self, about: Preparing, *fields: Literal["input", "retry", "timeout"]) -> None:
        """Raise InvalidDefinition if the node has one of these fields. Its kind cannot use them."""
        for name in fields:
            if getattr(self, name) is not None:
                tag = str(type(self).__struct_config__.tag)
                raise about.wrong(name, f"{'an' if tag[0] in 'aeiou' else 'a'} {tag} node has none")


KINDS: dict[str, type[Kind]] = {}


def kind(cls: K) -> K:
    """Register a kind of node under its tag."""
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
    """Return the retry policy of a definition. Raises InvalidDefinition; the message names the place."""
    retry_on = _exceptions(spec.retry_on, about, "retry.retry_on")
    give_up_on = _exceptions(spec.give_up_on, about, "retry.give_up_on")
    # The default maximum must not limit an initial pause that the author has set.
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
    """Return the exception class of Python or Perdure that has this name. Return None if there is no such class."""
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
    """Reads a step's result in the same way. Returns a Brought if the step has staged artifacts."""

    __slots__ = ()

    def read(self, text: str, what: str) -> Any:
        plain, staged = read_result(text)
        value = super().read(plain, what)
        return value if plain is text else Brought(value, staged)


class Brought(msgspec.Struct, frozen=True):
    """A node's result, and the ids by name of the artifacts that its step has staged."""

    value: Any
    staged: dict[str, str]


class PlainResult(Signature):
    """A signature whose results have JSON's own types, as all values in a graph's context have."""

    tells_staged = True

    def __init__(self, inner: Signature) -> None:
        self.__dict__.update({name: value for name, value in vars(inner).items() if name != "result"})

    @cached_property
    def result(self) -> Reader:
        return StepResultReader(self._resolve()[0])
