"""What runs bring beside their journals, as values: artifacts, tasks for others, and versioned records.

Times are microseconds since the epoch. Payloads are text that went through the codec, and opaque here.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

LAP: Final = (
    2**40
)  # what a run that begins anew takes off the `seq` of all that it has staged: more than it has entries
TASK_EVENT: Final = "perdure.task/"  # the answer to a task is an event of this name and the task's id


class Artifact(Struct, frozen=True, kw_only=True, gc=False):
    """A named result of a run. Others see it once it is `published`, in the commit in which the run succeeds.

    `seq` is the journal entry that it was staged with, `number` its place among what was staged with that entry;
    workflow code has no `position`, and what it stages again after a crash has the same `seq` and `number`. Of a run
    that failed, what it had staged is set `aside` for a retry. `content` is text that is small; other content is in
    chunks.
    """

    id: str
    run_id: str
    name: str
    type: str
    form: str  # json | text | bytes: what it was given as
    media_type: str
    size: int  # of the content, in bytes
    digest: str  # of the content: SHA-256, in hex
    workflow: str
    step: str = ""  # the step's, or the node's, name
    position: str = ""
    attempt: int = 0
    seq: int = 0
    number: int | None = None
    state: str = "staged"  # staged | aside | published
    version: int | None = None  # 1, 2, 3, … among those of its name; given by the store when it is published
    staged_at: int
    published_at: int | None = None
    chunks: int = 0
    content: str | None = None


class Chunk(Struct, frozen=True, kw_only=True, gc=False):
    """A part of an artifact's content. It may be there before its artifact is, and then counts for nothing."""

    run_id: str
    artifact_id: str
    number: int  # from 0 on
    data: bytes


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """Something that a run waits for somebody outside to do. It is open until it is answered, or withdrawn because its
    run no longer waits. While `lease_until` has not passed, `worker` has it to itself.

    `schema` (JSON) is what an answer must fit; `details` is what the last heartbeat said, `error` how the last worker
    failed.
    """

    id: str
    run_id: str
    position: str
    queue: str
    kind: str  # human | remote
    title: str
    schema: str
    payload: str
    status: str = "open"  # open | answered | withdrawn
    worker: str | None = None
    lease_us: int = 0
    lease_until: int | None = None
    beat_at: int | None = None
    details: str | None = None
    error: str | None = None
    claims: int = 0  # how often somebody took it
    due_at: int | None = None
    created_at: int
    closed_at: int | None = None
    answered_by: str | None = None
    actor: str = ""  # who asked for the last claim, heartbeat or release

    def is_claimed(self, at: int) -> bool:
        return self.status == "open" and self.lease_until is not None and self.lease_until > at


class TaskAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """A task is answered, if it is open: by a worker, only if nobody else has got it meanwhile."""

    task_id: str
    worker: str | None
    by: str
    at: int


class Record(Struct, frozen=True, kw_only=True):
    """One version of something that definitions refer to by kind and name: an action, a prompt, a model's profile."""

    kind: str
    name: str
    version: int = 0  # 1, 2, 3, …; given by the store
    digest: str  # of the body, before the codec: what tells whether it is the same
    actor: str
    at: int
    body: str  # JSON, through the codec


class Stock(Struct, kw_only=True):
    """What an op, a decision or a batch does to artifacts and tasks. `fates` says what becomes of what runs have
    staged: published, aside, gone, or staged again. Applied in the order of the fields."""

    chunks: list[Chunk] = field(default_factory=list)
    chunks_gone: list[str] = field(default_factory=list)  # of artifacts that never came to be
    artifacts: list[Artifact] = field(default_factory=list)
    fates: dict[str, str] = field(default_factory=dict)  # by run
    tasks: list[Task] = field(default_factory=list)
    answers: list[TaskAnswer] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)  # tasks, if they are open

    def add(self, other: Stock) -> None:
        self.chunks += other.chunks
        self.chunks_gone += other.chunks_gone
        self.artifacts += other.artifacts
        self.fates |= other.fates
        self.tasks += other.tasks
        self.answers += other.answers
        self.withdrawn += other.withdrawn

    @property
    def is_empty(self) -> bool:
        artifacts = self.chunks or self.chunks_gone or self.artifacts or self.fates
        return not (artifacts or self.tasks or self.answers or self.withdrawn)

    @property
    def payload_bytes(self) -> int:
        size = sum(len(chunk.data) for chunk in self.chunks)
        size += sum(len(artifact.content or "") for artifact in self.artifacts)
        return size + sum(len(task.payload) + len(task.schema) for task in self.tasks)


def task_event(task_id: str) -> str:
    """The name of the event that answers a task."""
    return TASK_EVENT + task_id
