"""Noticing that something blocks the process's event loop, and saying which step it is.

The loop notes the time regularly; a thread looks whether it still does. A blocked loop does not cost the engine its
runs, since signs of life are given elsewhere; but everything else in the process stands still meanwhile.
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

from perdure.models.common.carriers import Carriers, StepJob

log = logging.getLogger("perdure")

_ADVICE: Final = "make it a plain function, which runs in a thread, or await what takes long"


class BlockWatch:
    """Warns when the running loop does nothing for `warn_s`, and once more when it goes on."""

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
                # Perhaps the whole process was stopped for a while: then the loop goes on now.
                suspected_at = self._seen_at
                continue
            frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
            frame = frames.get(self._loop_thread)
            if frame is not None:
                self._culprit = culprit(frame)
                log.warning("%s has blocked the event loop for %.1f s so far; %s", self._culprit, blocked_s, _ADVICE)


def culprit(frame: FrameType) -> str:
    """What a thread that stands at this frame is doing: the step, if it is one, and the place."""
    place = traceback.extract_stack(frame, limit=1)[0]
    where = f"{place.filename}:{place.lineno}, in {place.name}"
    outer: FrameType | None = frame
    while outer is not None:
        cargo: StepJob | None = outer.f_locals.get("cargo") if outer.f_code in Carriers.frames else None
        if cargo is not None and cargo.coroutine is not None:  # and not one that has ended
            return f"{cargo.label} ({where})"
        outer = outer.f_back
    return f"code outside of any step ({where})"
