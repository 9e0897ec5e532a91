"""Structured cooperation: operations that handle messages in steps, and roll back together."""

from perdure.emitting import RootHandle
from perdure.joining import emit
from perdure.models.cooperation.context import Context, Deadline, Key
from perdure.models.cooperation.define import (
    NextStep,
    Operation,
    OperationStep,
    Topic,
    go_on,
    go_to,
    repeat,
)
from perdure.models.cooperation.failures import Failure, Frame
from perdure.models.cooperation.readiness import ready
from perdure.models.cooperation.scope import Emission, Scope
from perdure.models.cooperation.strategies import Handlers, Historical, Pending, Registry, Strategy, TimeWindow

__all__ = [
    "Context",
    "Deadline",
    "Emission",
    "Failure",
    "Frame",
    "Handlers",
    "Historical",
    "Key",
    "NextStep",
    "Operation",
    "OperationStep",
    "Pending",
    "Registry",
    "RootHandle",
    "Scope",
    "Strategy",
    "TimeWindow",
    "Topic",
    "emit",
    "go_on",
    "go_to",
    "ready",
    "repeat",
]
