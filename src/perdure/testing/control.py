"""Functions that only tests need: kill an engine or a client, and check whether an engine is idle."""

from __future__ import annotations

from perdure.engine import AnyClient, Engine


def kill(engine: AnyClient) -> None:
    """Stop an engine at once, as if its process were killed. Nothing is committed, released or cleaned up."""
    engine.session.kill()


def is_quiet(engine: Engine) -> bool:
    """Return whether nothing is queued, committed, loaded or running. Then only the passing of time or a caller can
    cause further work.
    """
    return engine.runtime.is_between_steps and not engine.runtime.steps_running


def steps_running(engine: Engine) -> int:
    """Return how many steps run now."""
    return engine.runtime.steps_running


__all__ = ["is_quiet", "kill", "steps_running"]
