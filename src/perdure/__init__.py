"""Perdure: durable workflows for Python. One SQLite file, no server."""

from perdure.coordinator.coordinator import Limits
from perdure.engine import Engine
from perdure.handles import RunHandle
from perdure.kernel.retry import Retry
from perdure.models.functions.context import (
    CurrentRun,
    CurrentStep,
    TimeReached,
    current_run,
    current_step,
    resource,
    sleep,
    sleep_until,
)
from perdure.models.functions.define import RunCall, Step, StepCall, Workflow, step, workflow

__all__ = [
    "CurrentRun",
    "CurrentStep",
    "Engine",
    "Limits",
    "Retry",
    "RunCall",
    "RunHandle",
    "Step",
    "StepCall",
    "TimeReached",
    "Workflow",
    "current_run",
    "current_step",
    "resource",
    "sleep",
    "sleep_until",
    "step",
    "workflow",
]
