"""A step for a worker process, which imports it from here."""

from __future__ import annotations

from perdure import Retry, current_step, step


@step(process=True, retry=Retry.never())
def stages_in_a_process() -> None:
    current_step().stage("report", 1)
