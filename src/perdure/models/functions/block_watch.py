"""The block watch notices when code blocks the process's event loop, and logs which step blocks it.

The loop notes the time regularly. A thread checks whether the loop still does that. A blocked loop does not cost the
engine its runs, because another thread sends the engine's heartbeat. But everything else in the process stands still
until the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

from perdure.models.common.step_tasks import Carriers, StepJob

log = logging.getLogger("perdure")

_ADVICE: Final = "make it a plain function, which runs in a thread, or await what takes long"


class BlockWatch:
    """Warns when the running loop has been blocked for `warn_s`, and again when the loop goes on."""

    def __init__(self, warn_s: float) -> None:
        self._warn_s = warn_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._seen_at = time.monotonic()
        self._culprit = ""
        self._ended = threading.Event()
        self._timer = self._loop.call_later(warn_s / 2, self._note)
        threading.Thread(target=self._look, name="perdure-block-watch", daemon=True).start()

    def end(self) -> None:
        self._timer.cancel()
        self._ended.set()

    def _note(self) -> None:
        now = time.monotonic()
        if self._culprit:
            blocked_s = now - self._seen_at
            log.warning("%s blocked the event loop for %.1f s; %s", self._culprit, blocked_s, _ADVICE)
            self._culprit = ""
        self._seen_at = now
        self._timer = self._loop.call_later(self._warn_s / 2, self._note)

    def _look(self) -> None:
        suspected_at = 0.0
        while not self._ended.wait(self._warn_s / 2):
            blocked_s = time.monotonic() - self._seen_at
            if blocked_s < self._warn_s or self._culprit:
                continue
            if suspected_at != self._seen_at:
                # The whole process may have been stopped for a while, for example by the operating system. Then the
                # loop runs again now, so look once more before warning.
                suspected_at = self._seen_at
                continue
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
            frame = frames.get(self._loop_thread)
            if frame is not None:
                self._culprit = culprit(frame)
                log.warning("%s has blocked the event loop for %.1f s so far; %s", self._culprit, blocked_s, _ADVICE)


def culprit(frame: FrameType) -> str:
    """Return a text about the work that a thread does at this frame: the step, if the thread runs a step, and the place
    in the code.
    """
    place = traceback.extract_stack(frame, limit=1)[0]
    where = f"{place.filename}:{place.lineno}, in {place.name}"
    outer: FrameType | None = frame
    while outer is not None:
        job: StepJob | None = outer.f_locals.get("job") if outer.f_code in Carriers.frames else None
        if job is not None and job.coroutine is not None:  # The coroutine is None once the step has ended.
            return f"{job.label} ({where})"
        outer = outer.f_back
    return f"code outside of any step ({where})"
