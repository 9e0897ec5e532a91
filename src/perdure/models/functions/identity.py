"""Identity of starts.

Two starts with one id are the same start if they have the same workflow and the same arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from perdure.errors import PerdureError, RunExists
from perdure.kernel.continuation_counts import without_life
from perdure.values.canonical import digest
from perdure.values.json import Signature


class Existing(Protocol):
    """The run that exists under an id."""

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
    """Return a short text that identifies the content of a start. `input` is JSON.

    Equal values have the same identity. These differences do not matter: the order of keys and of sets, a whole number
    that was written as a float, the time zone of a time, and whether a default was given or left out.
    """
    given = _arguments(input, known)
    if known is not None and given is not None:
        return _completed(workflow, given, known)
    return f"{workflow} {digest(msgspec.json.decode(input))}"


def _completed(workflow: str, given: dict[str, Any], known: Known) -> str:
    try:
        return f"{workflow} {digest(known.signature.complete(given))}"
    except Exception:  # noqa: BLE001 - a default need not have a JSON form
        return f"{workflow} {digest(given)}"


def _arguments(input: str, known: Known | None) -> dict[str, Any] | None:
    """Return the arguments by name. Return None if this process does not have the code, or if the code no longer takes
    these arguments.
    """
    if known is None:
        return None
    try:
        args, kwargs = known.signature.read(input)
        return known.signature.arguments(args, kwargs)
    except PerdureError:
        return None


def _identities(workflow: str, input: str, known: Known | None) -> Callable[[], set[str]]:
    """Return a function that returns all identities of a start. They include the identities that earlier versions
    wrote, and the identity that an engine without the code writes. The input is decoded at once. The function uses
    nothing that other code has, so you may call it in a thread."""
    decoded = msgspec.json.decode(input)
    given = _arguments(input, known)

    def identities() -> set[str]:
        written = hashlib.sha256(msgspec.json.encode(decoded, order="sorted")).hexdigest()[:32]
        found = {f"{workflow} {written}", f"{workflow} {digest(decoded)}"}
        if known is not None and given is not None:
            found |= {f"{workflow} {digest(given)}", f"{workflow} {digest(given, instants=False)}"}
            found.add(_completed(workflow, given, known))
        return found

    return identities


def check_same(run: Existing, stored: str, workflow: str, input: str, known: Known | None = None) -> None:
    """Check that the run with this id was started with the same workflow and arguments. Raises RunExists.

    `stored` is the run's current input. If the run has continued as another call, its `origin` says how it was started.
    """
    same_start(run, stored, workflow, input, known)()


def same_start(run: Existing, stored: str, workflow: str, input: str, known: Known | None = None) -> Callable[[], None]:
    """Return a function that does what `check_same` does. The inputs are decoded at once. The function may be called in
    a thread: comparing large inputs takes long."""
    origin = without_life(run.origin)
    before = None if origin else _identities(run.workflow, stored, known)
    asked = _identities(workflow, input, known)

    def check() -> None:
        if ({origin} if before is None else before()).isdisjoint(asked()):
            raise RunExists(
                f"the id {run.id!r} belongs to a run of {run.workflow!r} with the arguments {stored[:200]}; "
                f"this start asks for {workflow!r} with {input[:200]}. Use another id",
                run_id=run.id,
            )

    return check
