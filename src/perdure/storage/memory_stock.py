"""Artifacts, tasks and records of the store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch
from perdure.kernel.stock import LAP, Artifact, Chunk, Record, Stock, Task
from perdure.ports import ArtifactFilter, StoredRun, TaskFilter, Within


class StockTables(Struct, eq=False):
    """The tables."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    chunks: dict[str, dict[int, Chunk]] = field(default_factory=dict)  # by artifact
    tasks: dict[str, Task] = field(default_factory=dict)
    records: dict[tuple[str, str], list[Record]] = field(default_factory=dict)  # by kind and name; in order

    def accepts(self, stock: Stock) -> bool:
        """Whether all tasks that are answered are open, and had by those who answer them."""
        for answer in stock.answers:
            task = self.tasks.get(answer.task_id)
            if task is None or task.status != "open" or answer.worker not in (None, task.worker):
                return False
        return True

    def apply(self, batch: Batch) -> None:
        if batch.stock is not None:
            self._add(batch.stock)
        for run_id, first, _ in batch.archive:
            self._remove([one for one in self._unpublished(run_id) if one.seq >= first])
        for run_id in batch.continued:
            for one in self._unpublished(run_id):
                self.artifacts[one.id] = replace(one, seq=one.seq - LAP)
        if batch.stock is not None:
            for run_id, fate in batch.stock.fates.items():
                self._end(run_id, fate, batch.at)
            self._close(batch.stock, batch.at)

    def _add(self, stock: Stock) -> None:
        for chunk in stock.chunks:
            self.chunks.setdefault(chunk.artifact_id, {})[chunk.number] = chunk
        for artifact_id in stock.chunks_gone:
            if artifact_id not in self.artifacts:
                self.chunks.pop(artifact_id, None)
        known = {_mark(one) for one in self.artifacts.values()} if stock.artifacts else set()
        for artifact in stock.artifacts:
            if (mark := _mark(artifact)) is not None and mark in known:
                if artifact.id not in self.artifacts:
                    self.chunks.pop(artifact.id, None)
            else:
                self.artifacts[artifact.id] = artifact
                known.add(mark)
        self.tasks |= {task.id: task for task in stock.tasks}

    def _unpublished(self, run_id: str) -> list[Artifact]:
        return [one for one in self.artifacts.values() if one.run_id == run_id and one.state != "published"]

    def _remove(self, artifacts: list[Artifact]) -> None:
        for one in artifacts:
            del self.artifacts[one.id]
            self.chunks.pop(one.id, None)

    def _end(self, run_id: str, fate: str, at: int) -> None:
        mine = self._unpublished(run_id)
        if fate == "gone":
            self._remove(mine)
        elif fate == "published":
            newest = {one.name: 0 for one in mine}
            for one in self.artifacts.values() if mine else ():
                if one.name in newest:
                    newest[one.name] = max(newest[one.name], one.version or 0)
            for one in sorted(mine, key=lambda one: (one.seq, not one.position, one.number or 0, one.id)):
                newest[one.name] = version = newest[one.name] + 1
                published = replace(one, state="published", version=version, published_at=at)
                self.artifacts[one.id] = published
        else:
            self.artifacts |= {one.id: replace(one, state=fate) for one in mine}
        if fate != "staged":
            for artifact_id, chunks in list(self.chunks.items()):
                if artifact_id not in self.artifacts and any(chunk.run_id == run_id for chunk in chunks.values()):
                    del self.chunks[artifact_id]

    def _close(self, stock: Stock, at: int) -> None:
        for answer in stock.answers:
            closed = replace(self.tasks[answer.task_id], status="answered", closed_at=answer.at, answered_by=answer.by)
            self.tasks[answer.task_id] = closed
        for task_id in stock.withdrawn:
            task = self.tasks.get(task_id)
            if task is not None and task.status == "open":
                self.tasks[task_id] = replace(task, status="withdrawn", closed_at=at)

    # Reading.

    def list_artifacts(self, wanted: ArtifactFilter, runs: Mapping[str, StoredRun]) -> list[Artifact]:
        found = [
            replace(one, content=None)
            for one in self.artifacts.values()
            if (one.state == "published" or (wanted.staged and one.state == "staged"))
            and wanted.name in (None, one.name)
            and wanted.run_id in (None, one.run_id)
            and wanted.type in (None, one.type)
            and (wanted.after is None or one.id < wanted.after)
            and _is_within(one.run_id, wanted.within, runs)
        ]
        return sorted(found, key=lambda one: one.id, reverse=True)[: max(0, wanted.limit)]

    def artifact(self, id: str | None, name: str, version: int | None) -> Artifact | None:
        if id is not None:
            found = self.artifacts.get(id)
            return None if found is None or found.state == "aside" else found
        named = [one for one in self.artifacts.values() if one.name == name and one.version is not None]
        fitting = [one for one in named if version in (None, one.version)]
        return max(fitting, key=lambda one: one.version or 0, default=None)

    def chunk(self, artifact_id: str, number: int) -> bytes | None:
        found = self.chunks.get(artifact_id, {}).get(number)
        return None if found is None else found.data

    def list_tasks(self, wanted: TaskFilter, runs: Mapping[str, StoredRun]) -> list[Task]:
        found = [
            self.tasks[one]
            for one in sorted(self.tasks)
            if (wanted.after is None or one > wanted.after)
            and _matches(self.tasks[one], wanted)
            and _is_within(self.tasks[one].run_id, wanted.within, runs)
        ]
        return found[: max(0, wanted.limit)]

    # Writing beside commits.

    def claim_tasks(self, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str) -> list[Task]:
        free = self.list_tasks(TaskFilter(queue=queue, status="open", at=at, limit=limit), {})
        claimed = [
            replace(
                task,
                worker=worker,
                lease_us=lease_us,
                lease_until=at + lease_us,
                beat_at=at,
                claims=task.claims + 1,
                actor=actor,
            )
            for task in free
        ]
        self.tasks |= {task.id: task for task in claimed}
        return claimed

    def hold_task(
        self, task_id: str, worker: str, at: int, keep: bool, details: str | None, error: str | None, actor: str
    ) -> bool:
        task = self.tasks.get(task_id)
        if task is None or task.status != "open" or task.worker != worker:
            return False
        self.tasks[task_id] = replace(
            task,
            worker=worker if keep else None,
            lease_until=at + task.lease_us if keep else None,
            beat_at=at,
            details=task.details if details is None else details,
            error=task.error if error is None else error,
            actor=actor,
        )
        return True

    def put_record(self, record: Record) -> int:
        versions = self.records.setdefault((record.kind, record.name), [])
        if not versions or versions[-1].digest != record.digest:
            versions.append(replace(record, version=len(versions) + 1))
        return len(versions)

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


def _matches(task: Task, wanted: TaskFilter) -> bool:
    status = "claimed" if task.is_claimed(wanted.at) else task.status
    return (
        wanted.queue in (None, task.queue)
        and wanted.kind in (None, task.kind)
        and wanted.run_id in (None, task.run_id)
        and wanted.status in (None, status)
    )


def _is_within(run_id: str, within: Within | None, runs: Mapping[str, StoredRun]) -> bool:
    if within is None:
        return True
    found = runs.get(run_id)
    return found is not None and within.covers(found.run.workflow, found.run.tags)


def _mark(artifact: Artifact) -> tuple[str, int, int] | None:
    """What names an artifact that workflow code stages: the same if it is staged again. Those of steps have none."""
    if artifact.position or artifact.number is None:
        return None
    return (artifact.run_id, artifact.seq, artifact.number)
