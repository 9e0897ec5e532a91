"""Operations that handle messages in steps and roll back together (structured cooperation)."""

from perdure.api.root_handle import RootHandle
from perdure.errors import InfrastructureFailed
from perdure.models.bridges.function_emissions import emit
from perdure.models.cooperation.context import CancellationToken, Context, Key
from perdure.models.cooperation.deadlines import Deadline
from perdure.models.cooperation.define import Operation, OperationStep
from perdure.models.cooperation.failures import Failure, Frame
from perdure.models.cooperation.next_steps import go_on, go_to, repeat
from perdure.models.cooperation.scope import Emission, NextStep, Scope
from perdure.models.cooperation.strategies import Handlers, Historical, Pending, Registry, Strategy, TimeWindow
from perdure.models.cooperation.topics import Topic

__all__ = [
    "CancellationToken",
    "Context",
    "Deadline",
    "Emission",
    "Failure",
    "Frame",
    "Handlers",
    "Historical",
    "InfrastructureFailed",
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
    "repeat",
]
