"""What only tests do to an engine or a client: kill it, and see whether anything is going on in it."""

from __future__ import annotations

from perdure.engine import AnyClient, Engine


def kill(engine: AnyClient) -> None:
    """Stop as a killed process would, at once: nothing is committed, released or tidied up."""
    engine.session.kill()


def is_quiet(engine: Engine) -> bool:
    """Whether nothing is queued, committed, loaded or running: only time or a caller can make something happen."""
    return engine.runtime.is_between_steps and not engine.runtime.steps_running


def steps_running(engine: Engine) -> int:
    """How many steps' bodies run now."""
    return engine.runtime.steps_running


__all__ = ["is_quiet", "kill", "steps_running"]
