"""The patterns of `matches`, and their cost in an evaluation. perdure.values.patterns does the search."""

from __future__ import annotations

from perdure.models.graphs.cel.budget import EvaluationFailed, Frame
from perdure.values.patterns import PatternFailed, Search, automaton


def compiled(source: str, frame: Frame | None) -> Search:
    """Return a compiled pattern. An evaluation spends the steps for compiling a pattern once. Raises EvaluationFailed
    if the source is not a valid pattern.
    """
    if frame is not None and (known := frame.patterns.get(source)) is not None:
        search: Search = known
        return search
    if frame is not None:
        frame.spend(60 + 30 * len(source))
    try:
        pattern = automaton(source)
    except PatternFailed as error:
        raise EvaluationFailed(f"{source[:100]!r} is no pattern: {error}") from None
    if frame is None:
        return Search(pattern)
    frame.spend(8 * len(pattern.onward))
    found = frame.patterns[source] = Search(pattern)
    return found
