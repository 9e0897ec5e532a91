"""Records of the store in memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from perdure.kernel.records import Record


class RecordTables(Struct, eq=False):
    """The table."""

    records: dict[tuple[str, str], list[Record]] = field(default_factory=dict)  # by kind and name; in order

    def accepts(self, added: Sequence[Record]) -> bool:
        """Return whether each record is the next version of its name."""
        counts: dict[tuple[str, str], int] = {}
        for one in added:
            key = (one.kind, one.name)
            counts[key] = counts.get(key, len(self.records.get(key, ()))) + 1
            if one.version != counts[key]:
                return False
        return True

    def apply(self, added: Sequence[Record]) -> None:
        for one in added:
            self.records.setdefault((one.kind, one.name), []).append(one)

    def record(self, kind: str, name: str, version: int | None) -> Record | None:
        versions = self.records.get((kind, name), [])
        if version is None:
            return versions[-1] if versions else None
        return versions[version - 1] if 1 <= version <= len(versions) else None

    def list_records(self, kind: str, after: str | None, limit: int) -> list[Record]:
        names = sorted(name for known, name in self.records if known == kind and (after is None or name > after))
        return [self.records[kind, name][-1] for name in names][: max(0, limit)]

    def list_versions(self, since: int, after: tuple[str, str, int] | None, limit: int) -> list[Record]:
        found = [one for key in sorted(self.records) for one in self.records[key] if one.at >= since]
        if after is not None:
            found = [one for one in found if (one.kind, one.name, one.version) > after]
        return found[: max(0, limit)]
