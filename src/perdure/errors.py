"""All errors that Perdure raises, in one class tree.

    PerdureError
    ├── Misuse                      the call was wrong: nothing was written
    │   ├── InvalidArguments (TypeError)     arguments do not fit the signature or its annotations
    │   ├── InvalidDefinition                a workflow or a step cannot be defined like this
    │   ├── DuplicateWorkflow                two workflows share a name
    │   ├── UnknownWorkflow                  no such workflow in this engine
    │   ├── UnstorableValue                  a value has no JSON form, or is too large
    │   ├── HostDenied                       a node is not allowed to connect to this host
    │   ├── SecretNotFound                   a definition names a secret that does not exist
    │   ├── ForbiddenInWorkflow              I/O, threads or foreign futures in workflow code
    │   ├── NotInWorkflow                    a workflow verb outside a workflow
    │   ├── NotInStep                        a step verb outside a step
    │   ├── RunNotFound                      no run has this id
    │   ├── NotPublished                     the run has published nothing under this key
    │   ├── RunExists                        another run, with other arguments, has this id
    │   ├── RunFinished                      the run has ended, and the request needs an active run
    │   ├── RunNotWaiting                    the run does not wait for this event, and strict=True forbids queueing
    │   ├── KeyReused                        another event was sent with this key
    │   ├── DeadLetterNotFound               no dead letter has this id
    │   ├── ArtifactNotFound                 no artifact has this id, or this name and version
    │   ├── TaskNotFound                     no task has this id
    │   ├── TaskClosed                       the task was already answered, or withdrawn
    │   ├── InvalidAnswer                    the answer does not fit the task's schema
    │   ├── TaskLost                         the worker does not have the task
    │   ├── RecordNotFound                   no record has this kind, name and version
    │   ├── HierarchyTooDeep                 an emission would exceed the maximum depth of its hierarchy
    │   ├── QueueFull                        too many unread events of this name, or too many unwritten items
    │   ├── IsOperation                      the request does not work on a run of an operation: roll it back instead
    │   ├── RunNotRetryable                  only a failed run can be retried
    │   ├── RunOwnedElsewhere                another live engine owns the run
    │   ├── InvalidTransition                a status change that the table does not allow
    │   ├── ConcurrentModification           expected_version is not the run's version
    │   └── EngineStopped                    the engine is not running
    ├── Outcome                     how a run or a step ended
    │   ├── RunFailed                        the run failed; its cause is the rebuilt failure
    │   ├── ChildFailed                      a run that was waited for did not succeed
    │   ├── TaskFailed                       the worker of a task reported that it cannot be done
    │   ├── RollbackFailed                   some compensations failed
    │   ├── RunCancelled                     the run was cancelled
    │   ├── DeadlineExceeded                 the run's deadline passed
    │   ├── HttpFailed                       a server answered with an error status, or not at all
    │   ├── McpFailed                        a tool of an MCP server failed, or was not called
    │   ├── LlmFailed                        a model's server gave no usable answer; another attempt may get one
    │   │   ├── LlmRefused                   a model's server gave no usable answer, and another attempt would get none
    │   │   ├── LlmTruncated                 the answer reached the maximum number of tokens
    │   │   └── LlmOutputInvalid             the answer does not fit its schema, after all repairs
    │   ├── GraphFailed                      a graph cannot go on
    │   │   ├── ExpressionFailed             an expression has no value
    │   │   ├── TemplateFailed               a template cannot be filled in
    │   │   ├── NoMatchingEdge               a node has edges, and none of them matches
    │   │   ├── JoinFailed                   the branches that a join needs can no longer arrive, or came too late
    │   │   ├── LimitExceeded                more tokens, branches or nested forks than the graph may have
    │   │   ├── Terminated                   a terminate node ended the run as a failure
    │   │   └── GraphTimedOut (TimeoutError) a node or the run took too long
    │   ├── ScopeFailed                      a hierarchy of operations, or a part of it, failed
    │   └── StepFailed                       a step failed with something that cannot be rebuilt
    │       ├── MaxRetriesExceeded           a step failed after all its attempts
    │       ├── StepTimedOut (TimeoutError)  an attempt, or all of them, took too long, or sent no heartbeat
    │       └── StepProcessDied              the worker process that ran an attempt died
    ├── StoreError                  the store did not do what was requested
    │   ├── StoreBusy                        not now: nothing was written, and the same batch may be resent
    │   ├── OutcomeUnknown                   the batch may or may not have been committed
    │   ├── CommitRefused                    this batch can never be committed
    │   ├── CommitConflict                   rows of these runs were not as expected
    │   ├── HandlersChanged                  the handler registry changed since a message's handlers were read
    │   ├── AskedMeanwhile                   a run that was about to succeed received a request to give up
    │   ├── Fenced                           this engine was marked dead
    │   ├── StoreUnavailable                 gave up waiting for the store
    │   └── StoreBroken                      unusable: corrupt, not a database, too new
    │       ├── StoreMisconfigured           tables or rights are missing, or it is read-only: somebody can repair that
    │       ├── SchemaTooNew                 written by a newer Perdure
    │       └── StoreReplaced                its file was deleted or replaced while it was open
    └── EngineBug                   must never happen
        └── InvariantViolated                an invariant does not hold
            └── RowDamaged                   a stored row is not what Perdure wrote

`NonRetryable` is a marker for users' own exceptions. A step that raises such an exception is not retried.
`InfrastructureFailed` is the opposite, for steps of operations. A step that raises it is retried until it succeeds or
raises another exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.kernel.failures import Failure


class PerdureError(Exception):
    """The base class of all errors. Keyword arguments become attributes, so that callers do not need to parse the
    message.
    """

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


class NonRetryable(Exception):
    """Raise this, or a subclass, from a step to fail it at once, whatever its retry policy says."""


class InfrastructureFailed(Exception):
    """Raise this, or a subclass, from a step of an operation when something that the step needs is down, for example a
    database. Perdure retries the step without a limit. The pauses between attempts grow to a minute. Nothing is rolled
    back, and the step's retry policy does not count these attempts. A cancellation or a deadline stops the retries
    between two attempts.
    """


class Misuse(PerdureError): ...


class InvalidArguments(Misuse, TypeError): ...


class InvalidDefinition(Misuse):
    """A definition is invalid. For a graph, `problems` lists every mistake with its place."""

    problems: Sequence[str]


class DuplicateWorkflow(Misuse): ...


class UnknownWorkflow(Misuse): ...


class UnstorableValue(Misuse): ...


class HostDenied(Misuse):
    """This engine does not allow its nodes to connect to `host` (a name or an address), or to send a secret to it."""

    host: str


class SecretNotFound(Misuse, LookupError):
    name: str


class ForbiddenInWorkflow(Misuse): ...


class NotInWorkflow(Misuse): ...


class NotInStep(Misuse): ...


class RunNotFound(Misuse):
    run_id: str

    def __init__(self, run_id: str, why: str = "") -> None:
        why = why or "engine.runs.list() lists the runs"
        super().__init__(f"no run has the id {run_id!r}; {why}", run_id=run_id)


class NotPublished(Misuse, LookupError):
    run_id: str
    key: str


class RunExists(Misuse):
    run_id: str


class RunFinished(Misuse):
    run_id: str
    status: str


class RunNotWaiting(Misuse):
    run_id: str
    event: str


class KeyReused(Misuse):
    """Another event was already sent with this key. `event_id` is the id of that event."""

    event: str
    key: str
    event_id: str


class DeadLetterNotFound(Misuse):
    letter_id: str


class ArtifactNotFound(Misuse, LookupError): ...


class TaskNotFound(Misuse, LookupError):
    task_id: str


class TaskClosed(Misuse):
    """The task is closed. `status` says why: answered or withdrawn."""

    task_id: str
    status: str


class InvalidAnswer(Misuse):
    """The answer does not fit the task's schema.

    `path` is the wrong part of the answer, for example $.lines[2].amount.
    """

    task_id: str
    path: str


class TaskLost(Misuse):
    task_id: str
    worker: str


class RecordNotFound(Misuse, LookupError):
    kind: str
    name: str


class HierarchyTooDeep(Misuse):
    level: int
    levels_max: int


class QueueFull(Misuse):
    event: str
    pending: int
    stream: str


class IsOperation(Misuse):
    run_id: str


class RunNotRetryable(Misuse):
    run_id: str
    status: str


class RunOwnedElsewhere(Misuse):
    run_id: str
    owner: str


class InvalidTransition(Misuse):
    run_id: str
    was: str | None
    became: str


class ConcurrentModification(Misuse):
    run_id: str
    expected_version: int
    version: int


class EngineStopped(Misuse): ...


class Outcome(PerdureError): ...


class RunFailed(Outcome):
    """The run failed. `failure` is the stored failure; `__cause__` is the exception rebuilt from it."""

    run_id: str
    failure: Failure


class ChildFailed(Outcome):
    """A run that another run waited for did not succeed. `__cause__` is the rebuilt failure."""

    run_id: str
    status: str


class TaskFailed(Outcome):
    """A worker reported that a task cannot be done. `task_id` is the task, `worker` the worker."""

    task_id: str
    worker: str


class RollbackFailed(Outcome):
    """Compensations failed. `__cause__` is the failure of the first compensation that failed."""


class RunCancelled(Outcome):
    run_id: str
    reason: str | None


class DeadlineExceeded(Outcome): ...


class HttpFailed(Outcome):
    """The server answered an HTTP node's request with an error `status`. If the server did not answer, `status` is
    None.
    """

    status: int | None
    body: str


class McpFailed(Outcome):
    """A tool of an MCP server failed, or could not be called. If the tool failed, `content` is its answer. Otherwise
    `code` is the code of the server's error, or None if the server did not answer.
    """

    tool: str
    code: int | None
    content: list[Any]


class LlmFailed(Outcome):
    """A model's server did not answer, or its answer cannot be read. Another attempt may succeed, so the retry policy
    applies. `status` is the HTTP status of the answer, if the server answered. `retry_after_s` is the pause that the
    server asks for.
    """

    status: int | None = None
    retry_after_s: float | None = None


class LlmRefused(LlmFailed, NonRetryable):
    """The request is wrong or not allowed, or the model refused to answer. The request is not retried, because the
    result would be the same.
    """


class LlmTruncated(LlmFailed, NonRetryable):
    """The answer was cut off at its maximum number of tokens. `output` is the beginning of the answer."""

    output: str


class LlmOutputInvalid(LlmFailed, NonRetryable):
    """The answer does not fit the node's schema, even after all repairs that the node allows. `problem` says what is
    wrong.
    """

    output: str
    problem: str
    repairs: int
    usage: dict[str, Any] | None


class GraphFailed(Outcome):
    """A run of a graph cannot go on. `place` is the place in the definition."""

    place: str


class ExpressionFailed(GraphFailed):
    expression: str


class TemplateFailed(GraphFailed):
    """A template cannot be rendered. `variable` is the missing variable, or the part of the template that failed."""

    variable: str | None


class NoMatchingEdge(GraphFailed): ...


class JoinFailed(GraphFailed):
    """A join cannot go on. If branches failed, `__cause__` is the failure of the first failed branch. `branches`
    describes the first failed branches: fork, index, item, node, type and message of each.
    """

    branches: Sequence[Mapping[str, Any]]


class LimitExceeded(GraphFailed): ...


class Terminated(GraphFailed): ...


class GraphTimedOut(GraphFailed, TimeoutError): ...


class ScopeFailed(Outcome):
    """A hierarchy of operations, or a part of a hierarchy, failed or gave up. `failure` says why, for each run."""

    failure: Any


class StepFailed(Outcome):
    """A step failed with an exception that cannot be rebuilt in this process. `failure` is the stored failure."""

    failure: Failure | None

    def __init__(self, message: str, failure: Failure | None = None, **attributes: Any) -> None:
        super().__init__(message, failure=failure, **attributes)


class MaxRetriesExceeded(StepFailed):
    """A step failed in every attempt.

    If a retried step fails, this is also the `__cause__` of its rebuilt exception.
    """

    run_id: str
    position: str
    attempts: int
    history: Sequence[Any]


class StepTimedOut(StepFailed, TimeoutError): ...


class StepProcessDied(StepFailed):
    """The worker process of a step with `process=True` died, for example out of memory, by a crash in native code, or
    by a kill.

    `exit_code` is the exit code of the process. It is negative if a signal ended the process, and None if the process
    never started. The step is retried as its retry policy says.
    """

    exit_code: int | None


class StoreError(PerdureError): ...


class StoreBusy(StoreError): ...


class OutcomeUnknown(StoreError): ...


class CommitRefused(StoreError): ...


class CommitConflict(StoreError):
    """The store is not in the state that the batch expected. Rows of `run_ids` have another owner or version, or an id
    is taken. Or another engine has answered the mail in `mail_ids`. Or the handler registry is at version
    `registry_version`.
    """

    run_ids: frozenset[str]
    mail_ids: frozenset[int]
    registry_version: int | None

    def __init__(
        self, run_ids: frozenset[str], mail_ids: frozenset[int] = frozenset(), registry_version: int | None = None
    ) -> None:
        message = f"rows of {len(run_ids)} runs were not as expected: {sorted(run_ids)[:3]}"
        if mail_ids:
            message = f"{message}; another engine has answered mail {sorted(mail_ids)[:3]}"
        if registry_version is not None:
            message = f"{message}; the handler registry is at version {registry_version}"
        super().__init__(message, run_ids=run_ids, mail_ids=mail_ids, registry_version=registry_version)


class HandlersChanged(StoreError):
    """A handler was registered or retired after the handlers of a message were read. Read the handlers again."""


class AskedMeanwhile(StoreError):
    """A run of an operation received a request to give up after it had decided to succeed.

    The run must decide again.
    """


class Fenced(StoreError): ...


class StoreUnavailable(StoreError):
    """The store did not answer for `Limits.patience_s`. The message says why, and whether a write may have been
    committed.
    """


class StoreBroken(StoreError): ...


class StoreMisconfigured(StoreBroken):
    """The database answers, but cannot be used. Tables or rights are missing, or the file is read-only. An engine drops
    its runs and registers again. The engine goes on by itself once somebody has repaired the database.
    """


class SchemaTooNew(StoreBroken): ...


class StoreReplaced(StoreBroken): ...


class EngineBug(PerdureError): ...


class InvariantViolated(EngineBug): ...


class RowDamaged(InvariantViolated):
    """A stored row differs from the row that Perdure wrote: a disk, a tool or a person has changed it. The message
    names the table, the row, the column and its content.
    """

    @classmethod
    def at(cls, table: str, key: object, column: str, value: object, expected: str) -> RowDamaged:
        return cls(
            f"the store is damaged: {table}.{column} of row {key!r:.120} holds {value!r:.80} ({expected});"
            " correct the row, or restore it from a backup",
            table=table,
            key=str(key),
            column=column,
        )
