"""Counts of the server's requests, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # litestar adds the charset


class Measures:
    """Counts requests by method, route and status. Routes are counted by their path templates, so the number of series
    is bounded.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], tuple[int, float]] = {}

    def count(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a request that was answered."""
        # An invented method must not become a series of its own.
        key = (method if method in _METHODS else "other", route, status)
        number, total = self._requests.get(key, (0, 0.0))
        self._requests[key] = (number + 1, total + took_s)

    def lines(self) -> list[str]:
        """Return the metrics as lines."""
        counts = []
        seconds = []
        for (method, route, status), (number, total) in sorted(self._requests.items()):
            labels = {"method": method, "route": route, "status": str(status)}
            counts.append((labels, number))
            seconds.append((labels, total))
        return [
            *metric("perdure_http_requests_total", "counter", "Requests that were answered.", counts),
            *metric("perdure_http_request_seconds_total", "counter", "Seconds that answering requests took.", seconds),
        ]


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def metric(name: str, kind: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """Return the lines of one metric."""
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{shown}}} {value}" if shown else f"{name} {value}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


__all__ = ["CONTENT_TYPE", "Measures", "metric"]
