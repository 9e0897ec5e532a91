"""Merges: a join combines the outputs of branches to one value. This module is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import JoinFailed
from perdure.models.graphs.context import Scope
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.sizes import Sizes
from perdure.models.graphs.spec import MergeSpec


class Merge:
    """One merge of a join."""

    __slots__ = ("_place", "reducer", "source", "spec")

    def __init__(self, spec: MergeSpec, place: str, reducer: Callable[[list[Any]], Any] | None) -> None:
        """Raises InvalidDefinition."""
        self.spec = spec
        self.source = None if spec.source is None else Expression(spec.source, f"{place}, source")
        self.reducer = reducer
        self._place = place

    def apply(self, outputs: Mapping[int, Any], scope: Scope, sizes: Sizes) -> None:
        """Merge the outputs, which are given by branch index, and write the result to the target. Raises JoinFailed,
        LimitExceeded.
        """
        values = [outputs[index] for index in sorted(outputs)]
        there = scope.read(self.spec.target)
        size = self._size(there, values, sizes)
        merged = self._merged(outputs, values, there)
        size = self._measured(merged, sizes) if size is None else size
        scope.write(self.spec.target, merged)
        sizes.replace(there, merged, size)

    def add_late(self, index: int, value: Any, scope: Scope, sizes: Sizes) -> None:
        """Add the output of a late branch to the merged value. The branch arrived after the join had gone on. Raises
        JoinFailed, LimitExceeded.
        """
        target = self.spec.target
        grown: Any
        size: int | None
        match self.spec.strategy:
            case "append":
                grown = scope.grown(target, self._list)
                size = self._size(grown, [value], sizes)
                grown.extend(value if isinstance(value, list) else (value,))
            case "collect":
                grown = scope.grown(target, lambda there: list(there) if isinstance(there, list) else [])
                size = sizes.of([grown, value], self._place, target)
                grown.append(value)
            case "keyed":
                grown = scope.grown(target, lambda there: dict(there) if isinstance(there, dict) else {})
                size = sizes.of([grown, value], self._place, target)
                grown[str(index)] = value
            case "merge_object":
                # Check the value at the target first, as a merge of all outputs does.
                grown = scope.grown(target, self._object)
                more = self._of_type(value, dict, "an object", f"branch {index}")
                size = self._size(grown, [more], sizes)
                grown.update(more)
                size = self._measured(grown, sizes) if size is None else size
            case _:
                self.apply({index: value}, scope, sizes)
                return
        sizes.replace(None, grown, size or 0)

    def _size(self, there: Any, values: list[Any], sizes: Sizes) -> int | None:
        """Return how many bytes the merged value takes, or an upper bound. Return None if this is not known before the
        merge. Raises LimitExceeded.
        """
        match self.spec.strategy:
            case "append":
                return sizes.of([there, *values], self._place, self.spec.target)
            case "collect" | "keyed":
                return sizes.of(values, self._place, self.spec.target)
            case "merge_object":
                # Of equal fields only one is kept, so the merged value may take fewer bytes.
                return sizes.bound([there, *values])
            case "last_wins" | "reduce":
                return None

    def _measured(self, merged: Any, sizes: Sizes) -> int:
        values = merged.values() if self.spec.strategy == "merge_object" else (merged,)
        return sizes.of(values, self._place, self.spec.target)

    def _list(self, there: Any) -> list[Any]:
        return list(self._of_type(there, list, "a list"))

    def _object(self, there: Any) -> dict[str, Any]:
        return dict(self._of_type(there, dict, "an object"))

    def _merged(self, outputs: Mapping[int, Any], values: list[Any], there: Any) -> Any:
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
        except Exception as error:  # The reducer is a user's function, so it may raise anything.
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
