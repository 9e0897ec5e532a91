"""Values that runs have published, and items of their streams, in the store in memory."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.ports import STREAM_PAGE_CHARS_MAX

Mark = tuple[int, int]

_LAST = 2**63 - 1  # greater than any index in an activation


class StreamTables(Struct, eq=False):
    """The tables. Items are stored in the form that readers get. Their marks are stored separately."""

    values: dict[str, dict[str, PublishedValue]] = field(default_factory=dict)
    items: dict[str, dict[str, list[StreamItem]]] = field(default_factory=dict)
    marks: dict[str, set[Mark]] = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        for item in batch.stream_items:
            marks = self.marks.setdefault(item.run_id, set())
            if item.mark is None or item.mark not in marks:
                items = self.items.setdefault(item.run_id, {}).setdefault(item.stream, [])
                items.append(replace(item, offset=len(items) + 1, mark=None))
                if item.mark is not None:
                    marks.add(item.mark)
        for (run_id, key), value in batch.published.items():
            known = self.values.setdefault(run_id, {}).get(key)
            if known is None or (value.mark or (0, 0)) > (known.mark or (0, 0)):
                self.values[run_id][key] = value
        for run_id, first, _ in batch.archive:
            self._forget_marks(run_id, first, (first - 1, _LAST))
        for run_id, write in batch.runs.items():
            if write.expected_version is not None and write.input is not None:
                self._forget_marks(run_id, 0, (-1, 0))

    def _forget_marks(self, run_id: str, first: int, last: Mark) -> None:
        """From the activation `first` on, allow a run to publish and append again. The published values stay, with the
        mark `last`.
        """
        self.marks[run_id] = {mark for mark in self.marks.get(run_id, ()) if mark[0] < first}
        values = self.values.get(run_id, {})
        for key, value in values.items():
            if (value.mark or (0, 0)) >= (first, 0):
                values[key] = replace(value, mark=last)

    def published(self, run_id: str, key: str | None) -> list[PublishedValue]:
        values = self.values.get(run_id, {})
        return [replace(values[one], mark=None) for one in sorted(values) if key in (None, one)]

    def lengths(self, run_id: str) -> dict[str, int]:
        return {name: len(items) for name, items in sorted(self.items.get(run_id, {}).items())}

    def page(self, run_id: str, name: str, after: int, limit: int) -> tuple[StreamItem, ...]:
        page: list[StreamItem] = []
        size = 0
        for item in self.items.get(run_id, {}).get(name, [])[max(0, after) :]:
            if len(page) >= limit or size >= STREAM_PAGE_CHARS_MAX:
                break
            page.append(item)
            size += len(item.value)
        return tuple(page)
