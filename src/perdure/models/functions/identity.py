"""Whether two starts with one id are the same: the same workflow with the same arguments."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from perdure.errors import PerdureError, RunExists
from perdure.kernel.lives import without_life
from perdure.values.canonical import digest
from perdure.values.json import Signature


class Existing(Protocol):
    """A run that has an id already."""

    @property
    def id(self) -> str: ...

    @property
    def workflow(self) -> str: ...

    @property
    def origin(self) -> str: ...


class Known(Protocol):
    """A workflow whose parameters are known here."""

    @property
    def signature(self) -> Signature: ...


def identity(workflow: str, input: str, known: Known | None = None) -> str:
    """What a start asks for, in short. `input` is JSON. Equal values have one identity: the order of keys and of sets
    does not matter, nor whether a whole number was written as a float, in which zone a time was, or whether a default
    was given or left out."""
    given = _arguments(input, known)
    if known is not None and given is not None:
        try:
            return f"{workflow} {digest(known.signature.complete(given))}"
        except Exception:  # noqa: BLE001 - a default need not have a JSON form
            return f"{workflow} {digest(given)}"
    return f"{workflow} {digest(msgspec.json.decode(input))}"


def _arguments(input: str, known: Known | None) -> dict[str, Any] | None:
    """The arguments by name, None if the code is not here or does not take them any more."""
    if known is None:
        return None
    try:
        args, kwargs = known.signature.read(input)
        return known.signature.arguments(args, kwargs)
    except PerdureError:
        return None


def _identities(workflow: str, input: str, known: Known | None) -> set[str]:
    """All that a start may be known by: also as earlier versions wrote it, and as an engine without the code does."""
    written = hashlib.sha256(msgspec.json.encode(msgspec.json.decode(input), order="sorted")).hexdigest()[:32]
    found = {f"{workflow} {written}", identity(workflow, input), identity(workflow, input, known)}
    if (given := _arguments(input, known)) is not None:
        found |= {f"{workflow} {digest(given)}", f"{workflow} {digest(given, instants=False)}"}
    return found


def check_same(run: Existing, stored: str, workflow: str, input: str, known: Known | None = None) -> None:
    """An id was used before: fine, if it was for the same thing. Raises RunExists.

    `stored` is the run's input now; one that continued as something else remembers what it was started as.
    """
    origin = without_life(run.origin)
    before = {origin} if origin else _identities(run.workflow, stored, known)
    if before.isdisjoint(_identities(workflow, input, known)):
        raise RunExists(
            f"the id {run.id!r} belongs to a run of {run.workflow!r} with the arguments {stored[:200]}; "
            f"this start asks for {workflow!r} with {input[:200]}. Use another id",
            run_id=run.id,
        )
