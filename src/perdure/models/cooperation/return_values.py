"""Return values of runs. A run returns a value under a name, once. Its parent can read the value after the run has
committed.

A step returns and reads values through its scope (scope.py). machine.py refuses a name under which the run has already
returned a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from perdure.errors import UnstorableValue
from perdure.kernel.lineages import Lineage
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.message_events import State
from perdure.values.type_patterns import check_patterns

V = TypeVar("V")


class ReturnValue(Struct, frozen=True, kw_only=True, gc=False):
    """A value that a run returns to its parent under a name. A run can return only one value under each name."""

    lineage: Lineage
    handler: str
    variable: str
    value: str  # JSON

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the value: its run and its name."""
        return self.lineage[-1], self.variable


class Returns(Struct, frozen=True):
    """The values that a run's children have returned, in the order of emission. It also has the topic of each child, by
    the child's id.
    """

    values: Sequence[ReturnValue] = ()
    topics: Mapping[str, str] = field(default_factory=dict)


def read_value(value: ReturnValue, type: type[V]) -> V:
    """Return a value that a run has returned. Raises UnstorableValue if the value does not fit the type. Raises
    InvalidDefinition.
    """
    check_patterns(type, f"what {value.handler!r} has returned as {value.variable!r}")
    try:
        return msgspec.json.decode(value.value, type=type)
    except (msgspec.ValidationError, ValueError) as error:
        raise UnstorableValue(
            f"what {value.handler!r} has returned as {value.variable!r} does not fit the type: {error}"
        ) from error


def readable(children: Iterable[Child], values: Iterable[ReturnValue]) -> tuple[ReturnValue, ...]:
    """Return the values that a run may read: the values of its committed children, in the order of emission."""
    order = {child.lineage: place for place, child in enumerate(children) if child.state is State.COMMITTED}
    return tuple(sorted((one for one in values if one.lineage in order), key=lambda one: order[one.lineage]))
