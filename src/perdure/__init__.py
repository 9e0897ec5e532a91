"""Perdure: durable workflows for Python. One SQLite file, no server."""

from perdure.api.artifacts import ArtifactView
from perdure.api.events import To
from perdure.api.records import RecordView
from perdure.api.run_handle import RunHandle
from perdure.api.runs import BulkReport, RunSelection
from perdure.api.tasks import TaskView
from perdure.api.waits import WaitView
from perdure.blocking import Blocking
from perdure.client import Client
from perdure.engine import Engine
from perdure.kernel.rules.delivery import Delivered, Queued, TargetFinished, TargetNotFound
from perdure.models.functions.artifacts import stage
from perdure.models.functions.children import ChildHandle, run_of, start
from perdure.models.functions.compensation import compensate
from perdure.models.functions.context import CurrentRun, CurrentStep, current_run, current_step, resource
from perdure.models.functions.continuation import continue_as
from perdure.models.functions.define import RunCall, Step, StepCall, Stub, Workflow, step, stub, workflow
from perdure.models.functions.events import Event, NamedEvent
from perdure.models.functions.publications import Stream, publish, stream
from perdure.models.functions.tasks import NewArtifact, task
from perdure.models.functions.timers import TimeReached, sleep, sleep_until
from perdure.models.functions.waits import RunEnded, event, first, receive, timer, timer_at
from perdure.values.limits import Limits
from perdure.values.retry import Retry
from perdure.views import RunView, StreamItemView

__all__ = [
    "ArtifactView",
    "Blocking",
    "BulkReport",
    "ChildHandle",
    "Client",
    "CurrentRun",
    "CurrentStep",
    "Delivered",
    "Engine",
    "Event",
    "Limits",
    "NamedEvent",
    "NewArtifact",
    "Queued",
    "RecordView",
    "Retry",
    "RunCall",
    "RunEnded",
    "RunHandle",
    "RunSelection",
    "RunView",
    "Step",
    "StepCall",
    "Stream",
    "StreamItemView",
    "Stub",
    "TargetFinished",
    "TargetNotFound",
    "TaskView",
    "TimeReached",
    "To",
    "WaitView",
    "Workflow",
    "compensate",
    "continue_as",
    "current_run",
    "current_step",
    "event",
    "first",
    "publish",
    "receive",
    "resource",
    "run_of",
    "sleep",
    "sleep_until",
    "stage",
    "start",
    "step",
    "stream",
    "stub",
    "task",
    "timer",
    "timer_at",
    "workflow",
]
