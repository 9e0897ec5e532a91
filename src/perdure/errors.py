"""Every error Perdure raises, in one tree.

    PerdureError
    ├── Misuse                      the call was wrong: nothing was written
    │   ├── InvalidArguments (TypeError)     arguments do not fit the signature or its annotations
    │   ├── InvalidDefinition                a workflow or a step cannot be defined like this
    │   ├── DuplicateWorkflow                two workflows share a name
    │   ├── UnknownWorkflow                  no such workflow in this engine
    │   ├── UnstorableValue                  a value has no JSON form, or is too large
    │   ├── HostDenied                       a node is not allowed to connect to this host
    │   ├── SecretNotFound                   a definition names a secret that is nowhere
    │   ├── ForbiddenInWorkflow              I/O, threads or foreign futures in workflow code
    │   ├── NotInWorkflow                    a workflow verb outside a workflow
    │   ├── NotInStep                        a step verb outside a step
    │   ├── RunNotFound                      no run has this id
    │   ├── NotPublished                     the run has published nothing under this key
    │   ├── RunExists                        the id is taken by a run with other arguments
    │   ├── RunFinished                      the run has ended, the request needs one that has not
    │   ├── RunNotWaiting                    the run does not wait for this event, and it was not to be queued
    │   ├── KeyReused                        another event was sent with this key
    │   ├── DeadLetterNotFound               no dead letter has this id
    │   ├── ArtifactNotFound                 no artifact has this id, or this name and version
    │   ├── TaskNotFound                     no task has this id
    │   ├── TaskClosed                       the task was answered before, or withdrawn
    │   ├── InvalidAnswer                    the answer does not fit the task's schema
    │   ├── TaskLost                         the worker does not have the task
    │   ├── RecordNotFound                   no record has this kind, name and version
    │   ├── HierarchyTooDeep                 an emission would be further down than its hierarchy may go
    │   ├── QueueFull                        too many events of this name wait to be read, or items to be written
    │   ├── IsOperation                      a run of an operation: it rolls back instead, with all below it
    │   ├── RunNotRetryable                  only a failed run can be retried
    │   ├── RunOwnedElsewhere                another live engine owns the run
    │   ├── InvalidTransition                a status change that the table does not allow
    │   ├── ConcurrentModification           expected_version is not the run's version
    │   └── EngineStopped                    the engine is not running
    ├── Outcome                     how a run or a step ended
    │   ├── RunFailed                        the run failed; its cause is the rebuilt failure
    │   ├── ChildFailed                      a run that was waited for did not succeed
    │   ├── TaskFailed                       whoever was to do a task could not
    │   ├── RollbackFailed                   not all that was to be undone could be
    │   ├── RunCancelled                     the run was cancelled
    │   ├── DeadlineExceeded                 the run's deadline passed
    │   ├── HttpFailed                       a server answered with a status that says no, or not at all
    │   ├── McpFailed                        a tool of an MCP server failed, or was not called
    │   ├── LlmFailed                        a model's server gave no answer this time
    │   │   ├── LlmRefused                   … and would give none the next time
    │   │   ├── LlmTruncated                 the answer was cut off at its maximum of tokens
    │   │   └── LlmOutputInvalid             the answer does not fit its schema, after all repairs
    │   ├── GraphFailed                      a graph cannot go on
    │   │   ├── ExpressionFailed             an expression has no value
    │   │   ├── TemplateFailed               a template cannot be filled in
    │   │   ├── NoMatchingEdge               edges lead on from a node, and none matches
    │   │   ├── JoinFailed                   what a join needs can no longer arrive, or came too late
    │   │   ├── LimitExceeded                more tokens, branches or nested forks than the graph may have
    │   │   ├── Terminated                   a terminate node ended the run as a failure
    │   │   └── GraphTimedOut (TimeoutError) a node or the run took too long
    │   ├── ScopeFailed                      a hierarchy of operations, or a part of it, failed
    │   └── StepFailed                       a step failed with something that cannot be rebuilt
    │       ├── MaxRetriesExceeded           … after all its attempts
    │       ├── StepTimedOut (TimeoutError)  an attempt, or all of them, took too long or fell silent
    │       └── StepProcessDied              the process that ran an attempt died under it
    ├── StoreError                  the store did not do what it was asked
    │   ├── StoreBusy                        not now: nothing was written, the same batch may be sent again
    │   ├── OutcomeUnknown                   the batch may or may not have landed
    │   ├── CommitRefused                    this batch can never be committed
    │   ├── CommitConflict                   rows of these runs were not as expected
    │   ├── HandlersChanged                  who is expected to handle a message is not known any more
    │   ├── AskedMeanwhile                   a run that was about to succeed is asked to give up
    │   ├── Fenced                           this engine was declared dead
    │   ├── StoreUnavailable                 gave up waiting for the store
    │   └── StoreBroken                      unusable: corrupt, not a database, too new
    │       ├── StoreMisconfigured           tables or rights are missing, or it is read-only: somebody can mend that
    │       ├── SchemaTooNew                 written by a newer Perdure
    │       └── StoreReplaced                its file was deleted or replaced while it was open
    └── EngineBug                   must never happen
        └── InvariantViolated                something is not as it must be
            └── RowDamaged                   a stored row is not what Perdure wrote

`NonRetryable` is a marker for users' own exceptions: a step that raises one is not tried again. `InfrastructureFailed`
is the opposite, for steps of operations: a step that raises one is tried again until it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.kernel.records import Failure


class PerdureError(Exception):
    """The root. Keyword arguments become attributes, so that handlers need not parse the message."""

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


class NonRetryable(Exception):
    """Raise this, or a subclass, from a step to fail it at once whatever its retry policy says."""


class InfrastructureFailed(Exception):
    """Raise this, or a subclass, from a step of an operation when something that it needs is down: a database, a
    network. The step is tried again with a growing pause, a minute at most, however often; nothing is rolled back, and
    it does not count against the step's retry policy. A cancellation or a deadline ends it between two attempts."""


class Misuse(PerdureError): ...


class InvalidArguments(Misuse, TypeError): ...


class InvalidDefinition(Misuse):
    """Of a graph, `problems` are all that is wrong with its definition, each with its place."""

    problems: Sequence[str]


class DuplicateWorkflow(Misuse): ...


class UnknownWorkflow(Misuse): ...


class UnstorableValue(Misuse): ...


class HostDenied(Misuse):
    """This engine does not let its nodes connect to `host`, a name or an address, or send a secret to it."""

    host: str


class SecretNotFound(Misuse, LookupError):
    name: str


class ForbiddenInWorkflow(Misuse): ...


class NotInWorkflow(Misuse): ...


class NotInStep(Misuse): ...


class RunNotFound(Misuse):
    run_id: str

    def __init__(self, run_id: str, why: str = "") -> None:
        why = why or "list the runs there are with engine.runs.list()"
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
    """`event_id` is that of the event that was sent with the key."""

    event: str
    key: str
    event_id: str


class DeadLetterNotFound(Misuse):
    letter_id: str


class ArtifactNotFound(Misuse, LookupError): ...


class TaskNotFound(Misuse, LookupError):
    task_id: str


class TaskClosed(Misuse):
    """`status` says how: answered or withdrawn."""

    task_id: str
    status: str


class InvalidAnswer(Misuse):
    """`path` says where, as in $.lines[2].amount."""

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
    """The run failed. `failure` is what is stored; `__cause__` is the exception rebuilt from it."""

    run_id: str
    failure: Failure


class ChildFailed(Outcome):
    """A run that another one waited for ended otherwise than by succeeding. Its cause is the rebuilt failure."""

    run_id: str
    status: str


class TaskFailed(Outcome):
    """Whoever had a task gave it up for good. `task_id` tells which, `worker` who."""

    task_id: str
    worker: str


class RollbackFailed(Outcome):
    """Compensations failed. Its cause is the first one's failure."""


class RunCancelled(Outcome):
    run_id: str
    reason: str | None


class DeadlineExceeded(Outcome): ...


class HttpFailed(Outcome):
    """An HTTP node's request was answered with a status that says no, or (None) not at all."""

    status: int | None
    body: str


class McpFailed(Outcome):
    """A tool of an MCP server says that it failed (`content` has its answer), or it was not called: `code` is that of
    the server's error, None if the server did not answer."""

    tool: str
    code: int | None
    content: list[Any]


class LlmFailed(Outcome):
    """A request to a model was not answered, or with something that is no answer. It may be the next time, so the retry
    policy counts: `status` is that of the answer, if there was one, `retry_after_s` how long the server wants to be
    left alone."""

    status: int | None = None
    retry_after_s: float | None = None


class LlmRefused(LlmFailed, NonRetryable):
    """The request is wrong, or not allowed, or the model declined: the next one would fare no better."""


class LlmTruncated(LlmFailed, NonRetryable):
    """The answer has as many tokens as it may have, and is not at its end. `output` is its beginning."""

    output: str


class LlmOutputInvalid(LlmFailed, NonRetryable):
    """The model was told what is wrong with its answer, as often as it may be, and the last one is wrong too."""

    output: str
    problem: str
    repairs: int
    usage: dict[str, Any] | None


class GraphFailed(Outcome):
    """A run of a graph cannot go on; `place` says where in the definition."""

    place: str


class ExpressionFailed(GraphFailed):
    expression: str


class TemplateFailed(GraphFailed):
    """`variable` is what was missing, or the part of the template that went wrong."""

    variable: str | None


class NoMatchingEdge(GraphFailed): ...


class JoinFailed(GraphFailed):
    """Its cause, if branches failed, is the failure of the first of them; `branches` are the first ones that did: fork,
    index, item, node, type and message of each."""

    branches: Sequence[Mapping[str, Any]]


class LimitExceeded(GraphFailed): ...


class Terminated(GraphFailed): ...


class GraphTimedOut(GraphFailed, TimeoutError): ...


class ScopeFailed(Outcome):
    """A run of an operation failed, or gave up, with all that belongs to it. `failure` tells why, run by run."""

    failure: Any


class StepFailed(Outcome):
    """A step failed with an exception that cannot be rebuilt here; `failure` has all that is known of it."""

    failure: Failure | None

    def __init__(self, message: str, failure: Failure | None = None, **attributes: Any) -> None:
        super().__init__(message, failure=failure, **attributes)


class MaxRetriesExceeded(StepFailed):
    """A step failed in every attempt. Also the `__cause__` of a rebuilt exception that ended a retried step."""

    run_id: str
    position: str
    attempts: int
    history: Sequence[Any]


class StepTimedOut(StepFailed, TimeoutError): ...


class StepProcessDied(StepFailed):
    """The worker process of a step with `process=True` died: out of memory, a crash in native code, a kill.

    `exit_code` is that of the process, negative if a signal ended it; None if it never came up. Tried again by policy.
    """

    exit_code: int | None


class StoreError(PerdureError): ...


class StoreBusy(StoreError): ...


class OutcomeUnknown(StoreError): ...


class CommitRefused(StoreError): ...


class CommitConflict(StoreError):
    """Rows of `run_ids` were not as the batch expected (another owner or version, or an id that is taken), or mail that
    it answers is gone: somebody else has answered it; or the handlers are those of another version of their `book`."""

    run_ids: frozenset[str]
    mail_ids: frozenset[int]
    book: int | None

    def __init__(
        self, run_ids: frozenset[str], mail_ids: frozenset[int] = frozenset(), book: int | None = None
    ) -> None:
        message = f"rows of {len(run_ids)} runs were not as expected: {sorted(run_ids)[:3]}"
        if mail_ids:
            message = f"{message}; mail {sorted(mail_ids)[:3]} was answered by somebody else"
        if book is not None:
            message = f"{message}; the book of handlers is at version {book}"
        super().__init__(message, run_ids=run_ids, mail_ids=mail_ids, book=book)


class HandlersChanged(StoreError):
    """Since it was found out who is to handle a message, a handler was registered or taken out: find out again."""


class AskedMeanwhile(StoreError):
    """Since a run of an operation decided to succeed, it was asked to give up: it must decide again."""


class Fenced(StoreError): ...


class StoreUnavailable(StoreError):
    """The store did not answer for `Limits.patience_s`. The message says why, and whether something may have been
    written nevertheless."""


class StoreBroken(StoreError): ...


class StoreMisconfigured(StoreBroken):
    """The database answers, but cannot be used as it is: tables or rights are missing, or the file is read-only. An
    engine drops its runs, registers anew and goes on by itself once somebody has mended it."""


class SchemaTooNew(StoreBroken): ...


class StoreReplaced(StoreBroken): ...


class EngineBug(PerdureError): ...


class InvariantViolated(EngineBug): ...


class RowDamaged(InvariantViolated):
    """A stored row is not what Perdure wrote: a disk, a tool or a person has changed it. The message names the table,
    the row, the column and what stands there."""

    @classmethod
    def at(cls, table: str, key: object, column: str, value: object, expected: str) -> RowDamaged:
        return cls(
            f"the store is damaged: {table}.{column} of row {key!r:.120} holds {value!r:.80} ({expected});"
            " correct the row, or restore it from a backup",
            table=table,
            key=str(key),
            column=column,
        )
