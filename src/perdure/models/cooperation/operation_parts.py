"""The parts that the host of operations shares with its own parts."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.models.common.background import BackgroundTasks
from perdure.models.common.crash_blame import Blame
from perdure.models.common.host_parts import HostParts
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.holds import Holds
from perdure.models.cooperation.live_runs import LiveRuns
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.runner import OperationRunner
from perdure.models.cooperation.versions import Operations


class MailReader(Protocol):
    """Reads the mail that this engine's commits have left for its own runs."""

    async def try_to_read_mail(self) -> None:
        """Read the mail now, if that is possible. Otherwise this engine or another engine reads it later."""
        ...


class OperationParts(Struct, frozen=True, kw_only=True):
    """The parts of the engine, and the parts of its operations."""

    engine: HostParts
    operations: Operations
    registry: HandlerRegistry
    rows: RowCodec
    runner: OperationRunner
    runs: LiveRuns
    holds: Holds
    blame: Blame
    background: BackgroundTasks
    mail: MailReader


__all__ = ["MailReader", "OperationParts"]
