"""Versioned records that definitions refer to by name: prompts, model profiles and actions.

When a node first needs a record, the run reads it in a step. From then on the run keeps this version, because the
version and the body are in its journal. If the record is invalid, that step fails. So a run that is retried reads the
newest version again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from perdure.errors import InvalidDefinition, RecordNotFound
from perdure.models.functions.context import current_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.functions.records import Records
from perdure.models.graphs.spec import Count, Name, Seconds, Spec
from perdure.values.arguments import check_fields
from perdure.values.checks import checked_text
from perdure.values.json import Signature
from perdure.values.retry import Retry

S = TypeVar("S", bound=Spec)

RecordKind = Literal["prompt", "model", "action"]

# A store that is busy now may answer a little later.
LOOKUP_RETRY: Final = Retry(attempts=10, initial=timedelta(seconds=0.1), maximum=timedelta(seconds=10))
_REFERENCE: Final = re.compile(r"(?P<name>.+?)(?:@(?P<version>[1-9][0-9]{0,8}|latest))?", re.DOTALL)


class Example(Spec, frozen=True, kw_only=True):
    """An example of a prompt and its answer. Both are plain texts."""

    prompt: str
    answer: str

    def __post_init__(self) -> None:
        check_fields(self)


class PromptSpec(Spec, frozen=True, kw_only=True):
    """A record of kind "prompt".

    It can have the fields `system`, `schema`, `strict` and `examples` of an llm node. Its `template` is the node's
    `prompt`. A node that uses the record must map at least the names in `requires`.
    """

    description: str = ""
    template: str
    system: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool = False
    requires: list[str] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)


class ModelProfile(Spec, frozen=True, kw_only=True):
    """A record of kind "model". It says which model to call, at which server, and with which options. The fields are
    the same as for an llm node.
    """

    description: str = ""
    model: Annotated[str, Meta(min_length=1)]
    base_url: str | None = None
    secret: Name | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    max_tokens: Count | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stall_timeout: Seconds | None = None
    attempt_timeout: Seconds | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class Reference(Struct, frozen=True):
    """A record that a definition names. Without a version, it means the newest version at the run's first use."""

    kind: RecordKind
    name: str
    version: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + ("" if self.version is None else f"@{self.version}")


def reference(kind: RecordKind, text: str) -> Reference:
    """Parse a reference such as `greeting` or `greeting@3`. Raises InvalidArguments."""
    matched = _REFERENCE.fullmatch(text)
    name = checked_text(matched["name"] if matched else "", f"the name of a {kind}")
    version = matched["version"] if matched else None
    return Reference(kind, name, None if version in (None, "latest") else int(version or 0))


class Found(Struct, frozen=True):
    """A record in the version that a run has read."""

    version: int
    body: Any


class Reading:
    """The instructions for reading a record. `check` takes the record's body and its place, and raises if the body is
    invalid.
    """

    __slots__ = ("_check", "_place", "_step", "reference")

    def __init__(self, reference: Reference, place: str, check: Callable[[Any, str], object]) -> None:
        self.reference: Reference = reference
        self._place = place
        self._check = check
        self._step: Step[Any, Any] = Step(
            self._read,
            name=str(reference),
            retry=LOOKUP_RETRY,
            timeout=None,
            total_timeout=None,
            heartbeat_timeout=None,
            process=False,
            signature=Signature(self._read, f"the {reference}", {}),
        )

    async def _read(self) -> Found:
        wanted = self.reference
        found = await current_step().resource(Records).get(wanted.kind, wanted.name, wanted.version)
        if found is None:
            version = "" if wanted.version is None else f" with version {wanted.version}"
            raise RecordNotFound(
                f"{self._place}: there is no {wanted.kind} {wanted.name!r}{version}; "
                f"engine.records.put({wanted.kind!r}, {wanted.name!r}, …) makes one",
                kind=wanted.kind,
                name=wanted.name,
            )
        self._check(found[1], self.place_of(found[0]))
        return Found(*found)

    def place_of(self, version: int) -> str:
        return f"{self._place}, {self.reference.kind} {self.reference.name!r} version {version}"

    def request(self, loop: WorkflowLoop) -> asyncio.Future[Any]:
        return loop.request_step(self._step.name, StepCall(self._step, (), {}, is_awaited=True))


class Lookup(Protocol):
    """A look-up that a run makes in a step. The reference identifies it."""

    @property
    def reference(self) -> Hashable: ...

    def request(self, loop: WorkflowLoop) -> asyncio.Future[Any]: ...


class Pins:
    """The results of a run's look-ups: records, in one version for all nodes, and workflows that were chosen by
    name.
    """

    __slots__ = ("_found", "_loop")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._found: dict[Hashable, asyncio.Future[Any]] = {}

    def get(self, lookup: Lookup) -> asyncio.Future[Any]:
        """Return a future for the result of a look-up. If one node stops waiting, other waiting nodes still get the
        result. The future raises the errors of the look-up. For a record these are RecordNotFound and
        InvalidDefinition. After an error, the next node repeats the look-up.
        """
        known = self._found.get(lookup.reference)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._found[lookup.reference] = lookup.request(self._loop)
        return asyncio.shield(known)


def as_prompt(body: Any, place: str) -> PromptSpec:
    """Raises InvalidDefinition."""
    return _converted(body, PromptSpec, place)


def as_profile(body: Any, place: str) -> ModelProfile:
    """Raises InvalidDefinition."""
    return _converted(body, ModelProfile, place)


def _converted(body: Any, wanted: type[S], place: str) -> S:
    try:
        return msgspec.convert(body, wanted)
    except msgspec.ValidationError as error:
        raise InvalidDefinition(f"{place}: {error}") from error


__all__ = [
    "LOOKUP_RETRY",
    "Example",
    "Found",
    "Lookup",
    "ModelProfile",
    "Pins",
    "PromptSpec",
    "Reading",
    "Reference",
    "as_profile",
    "as_prompt",
    "reference",
]
