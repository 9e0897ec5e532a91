"""Control of an engine or a client that only tests need: kill it, and check whether it is idle."""

from __future__ import annotations

from perdure.engine import AnyClient, Engine


def kill(engine: AnyClient) -> None:
    """Stop at once, as a killed process does: nothing is committed, released or cleaned up."""
    engine.session.kill()


def is_quiet(engine: Engine) -> bool:
    """Whether nothing is queued, committed, loaded or running: only time or a caller can make something happen."""
    return engine.runtime.is_between_steps and not engine.runtime.steps_running


def steps_running(engine: Engine) -> int:
    """Return how many steps run now."""
    return engine.runtime.steps_running


__all__ = ["is_quiet", "kill", "steps_running"]
