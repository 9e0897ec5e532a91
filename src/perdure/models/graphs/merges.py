"""How the outputs of branches become one value at a join. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import JoinFailed
from perdure.models.graphs.context import Scope
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.spec import MergeSpec


class Merge:
    """One merge of a join, ready to be applied."""

    __slots__ = ("_place", "reducer", "source", "spec")

    def __init__(self, spec: MergeSpec, place: str, reducer: Callable[[list[Any]], Any] | None) -> None:
        """Raises InvalidDefinition."""
        self.spec = spec
        self.source = None if spec.source is None else Expression(spec.source, f"{place}, source")
        self.reducer = reducer
        self._place = place

    def apply(self, outputs: Mapping[int, Any], scope: Scope) -> None:
        """Write the outputs, by branch index, to the target. Raises JoinFailed."""
        values = [outputs[index] for index in sorted(outputs)]
        scope.write(self.spec.target, self._merged(outputs, values, scope))

    def add_late(self, index: int, value: Any, scope: Scope) -> None:
        """A branch came after the join had gone on: add its output to what is there. Raises JoinFailed."""
        target = self.spec.target
        match self.spec.strategy:
            case "append":
                scope.grown(target, self._list).extend(value if isinstance(value, list) else (value,))
            case "collect":
                scope.grown(target, lambda there: list(there) if isinstance(there, list) else []).append(value)
            case "keyed":
                scope.grown(target, lambda there: dict(there) if isinstance(there, dict) else {})[str(index)] = value
            case "merge_object":
                # What stands there is checked first, as when all are merged at once.
                scope.grown(target, self._object).update(self._of_type(value, dict, "an object", f"branch {index}"))
            case _:
                self.apply({index: value}, scope)

    def _list(self, there: Any) -> list[Any]:
        return list(self._of_type(there, list, "a list"))

    def _object(self, there: Any) -> dict[str, Any]:
        return dict(self._of_type(there, dict, "an object"))

    def _merged(self, outputs: Mapping[int, Any], values: list[Any], scope: Scope) -> Any:
        there = scope.read(self.spec.target)
        match self.spec.strategy:
            case "append":
                flat = bool(values) and all(isinstance(value, list) for value in values)
                more = [one for value in values for one in value] if flat else values
                return [*self._of_type(there, list, "a list"), *more]
            case "collect":
                return values
            case "merge_object":
                merged: dict[str, Any] = dict(self._of_type(there, dict, "an object"))
                for index in sorted(outputs):
                    merged |= self._of_type(outputs[index], dict, "an object", f"branch {index}")
                return merged
            case "keyed":
                return {str(index): outputs[index] for index in sorted(outputs)}
            case "last_wins":
                return values[-1] if values else {}
            case "reduce":
                return self._reduced(values)

    def _reduced(self, values: list[Any]) -> Any:
        assert self.reducer is not None
        try:
            return self.reducer(values)
        except Exception as error:  # the function is the user's
            raise JoinFailed(f"{self._place}: its reducer raised {error!r}", place=self._place) from error

    def _of_type(self, value: Any, wanted: type, what: str, whose: str = "") -> Any:
        if value is None and not whose:
            return wanted()
        if isinstance(value, wanted):
            return value
        where = f"the output of {whose}" if whose else f"what stands at {self.spec.target}"
        raise JoinFailed(
            f"{self._place}: {self.spec.strategy} needs {what}, but {where} is {value!r:.100}", place=self._place
        )
