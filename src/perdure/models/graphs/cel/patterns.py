"""The patterns of `matches`, and what they cost in an evaluation. perdure.values.patterns searches."""

from __future__ import annotations

from perdure.models.graphs.cel.budget import EvaluationFailed, Frame
from perdure.values.patterns import PatternFailed, Search, automaton


def compiled(source: str, frame: Frame | None) -> Search:
    """A pattern, ready to search. In an evaluation it is paid for once. Raises EvaluationFailed: it is none."""
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
