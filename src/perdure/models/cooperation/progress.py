"""The progress of a run: the step instances that it has executed, the messages that it waits for, and the phases of its
rollback that are done. progress_fold.py computes it from the run's rows.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perdure.errors import PerdureError
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import (
    MessageEvent,
    State,
)


class Mismatch(PerdureError):
    """Raised when the rows name a step that the operation does not have."""


class Instance(Struct, frozen=True, kw_only=True, gc=False):
    """One execution of a step. With `call`, counted from 0, it is one call of the step's handler of child failures."""

    index: int
    name: str
    iteration: int
    call: int | None = None
    emitted: tuple[str, ...] = ()
    next_step: int | None = None
    is_numbered: bool = False  # whether an earlier version of Perdure stored `next_step` as a number without a name

    @property
    def text(self) -> str:
        return f"{self.name}[{self.iteration},{'' if self.call is None else self.call}]"


class Phase(Struct, frozen=True, kw_only=True, gc=False):
    """One half of the rollback of an instance. The first half is its children, and the second half is the step
    itself.
    """

    instance: Instance
    kind: Literal["children", "own"]
    text: str
    cleanup: bool = False  # whether the step's finally function has not run


class Window(Struct, frozen=True, kw_only=True, gc=False):
    """The messages that the latest SUSPENDED row waits for. These are the messages that were emitted after the previous
    SUSPENDED row, and the messages whose handlers were asked to undo (`undone`).
    """

    emitted: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    calls: int = 0  # calls of the handler of child failures, for this window's step
    since: int = 0
    step: str = ""

    @property
    def messages(self) -> tuple[str, ...]:
        return (*self.emitted, *self.undone)


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    instances: tuple[Instance, ...] = ()
    window: Window | None = None  # None until the first SUSPENDED row of the happy path, or of the rollback
    context: Context = EMPTY
    rollback: MessageEvent | None = None  # its ROLLING_BACK row
    phases: tuple[Phase, ...] = ()
    done: int = 0  # the number of phases that are done
    recorded: tuple[Failure, ...] = ()  # failures of the rollback that were recorded, and after which it went on
    next_seq: int = 1
    state: State = State.CREATED
    misfit: str = ""  # the difference between the order of the executed steps and the code

    @property
    def phase(self) -> Phase:
        """The phase that the window belongs to."""
        return self.phases[self.done - 1]
