"""The catalogue: the workflows that the engines of a store have. It is used by starts by name, and by steps that choose
a workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import InvalidArguments, UnknownWorkflow
from perdure.kernel.cooperation import read_version
from perdure.models.functions.define import Workflow
from perdure.ports import Store


class Catalogue:
    """The workflows of all living engines: `current_step().resource(Catalogue)`."""

    def __init__(self, store: Callable[[], Store], known: Mapping[tuple[str, str], Workflow[Any, Any]]) -> None:
        """`known` are the functions and graphs of this process, by name and version."""
        self._store = store
        self._known = known

    def model(self, name: str, version: str) -> str:
        """Return the model of a workflow; "" if this process does not have the workflow."""
        found = self._known.get((name, version))
        return "" if found is None else found.model

    async def version(self, name: str, *, hint: str = "") -> str:
        """Return the version of a workflow on the engine that started last. Engines without the workflow do not count.

        Raises UnknownWorkflow, with the hint in its message. Raises InvalidArguments if only an operation has this
        name. Raises StoreError.
        """
        versions = await self._versions(name)
        if not versions:
            engines = [engine for engine in await self._store().engines() if engine.alive]
            known = sorted({known for engine in engines for known, _ in engine.workflows})
            raise UnknownWorkflow(
                f"no engine that is alive has a workflow {name!r}, only: {', '.join(known) or 'none'}{hint}"
            )
        return versions[-1]

    async def check(self, name: str, version: str) -> None:
        """Check that a living engine has this version of a workflow. Raises UnknownWorkflow, and the errors of
        `version`."""
        if self._known.get((name, version)) is not None:
            return
        await self.version(name)
        known = sorted({*await self._versions(name)})
        if version not in known:
            has = ", ".join(map(repr, known))
            raise UnknownWorkflow(f"no engine that is alive has version {version!r} of workflow {name!r}, only: {has}")

    async def _versions(self, name: str) -> list[str]:
        """Return the versions of a workflow that living engines have. The versions of the engine that started last come
        last.

        Raises InvalidArguments if only an operation has this name.
        """
        engines = [engine for engine in await self._store().engines() if engine.alive]
        found = [version for engine in engines for known, version in engine.workflows if known == name]
        if not found or self._known.get((name, found[-1])) is not None:
            return found
        topics = {row.topic for row in (await self._store().handlers()).handlers if row.name == name}
        # An engine lists an operation with its topic as the version.
        versions = [version for version in found if read_version(version)[0] not in topics]
        if not versions:
            raise InvalidArguments(
                f"{name!r} is an operation, which is not started but handles messages: emit one on the topic "
                f"{min(topics)!r}"
            )
        return versions


__all__ = ["Catalogue"]
