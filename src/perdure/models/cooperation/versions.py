"""The operations that an engine has, in one or several versions of each.

A handler is a topic and a name, in all versions of its code. Emitters and the registry do not know versions. Any
version can begin a run. The commit that begins the run (SEEN) stores the version in the run. From then on, no other
version takes the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.errors import DuplicateWorkflow
from perdure.kernel.cooperation import read_version
from perdure.models.common.deployment import offered
from perdure.models.cooperation.define import Operation
from perdure.ports import Offer

Handler = tuple[str, str]  # topic, name


class Operations(dict[Handler, Operation[Any]]):
    """Operations by topic and name. Each entry is the version that begins new runs, which is the version that was added
    last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Handler, dict[str, Operation[Any]]] = {}

    def add(self, operation: Operation[Any]) -> None:
        """Add a version of an operation. Raises DuplicateWorkflow, InvalidDefinition."""
        versions = self._known.setdefault((operation.topic.name, operation.name), {})
        known = versions.get(operation.version)
        if known is operation:
            return
        if known is not None:
            same = f" and version {operation.version!r}" if operation.version else ""
            raise DuplicateWorkflow(
                f"{known!r} and {operation!r} have the same name{same}, and handle the same topic "
                f"{operation.topic.name!r}; give one of them another name or version, or say which to use with "
                "Engine(workflows=[…])"
            )
        _ = operation.plan  # From now on the operation cannot be changed.
        versions[operation.version] = self[operation.topic.name, operation.name] = operation

    def exact(self, topic: str, name: str, version: str) -> Operation[Any] | None:
        return self._known.get((topic, name), {}).get(version)

    def of(self, topic: str, name: str, stored: str, *, is_begun: bool) -> Operation[Any] | None:
        """Return the code of a run, by the version that is stored with the run. Return None if this engine does not
        have that code.
        """
        _, version = read_version(stored)
        return self.exact(topic, name, version) if version or is_begun else self.get((topic, name))

    def all(self) -> Iterator[Operation[Any]]:
        """Yield every version of each operation."""
        for versions in self._known.values():
            yield from versions.values()

    def offers(self) -> Iterator[Offer]:
        """Yield the code of this engine as offers. With offers, the engine asks the store for runs that fit its code.

        Runs that have not begun are offered to one version only. A hold on such a run has the fingerprint of that
        version. If another version lifted the hold, the run would only be held again.
        """
        for (topic, name), versions in self._known.items():
            has_versions = any(versions)
            for version, operation in versions.items():
                begun = True if has_versions and not version else None
                yield Offer(name, operation.stored_version, offered(operation), "operation", begun)
            if has_versions:
                yield Offer(name, topic, offered(self[topic, name]), "operation", False)


def lacking(topic: str, name: str, stored: str) -> str:
    """Return the reason why an engine without the code does not go on with a run."""
    _, version = read_version(stored)
    which = f"{name!r} version {version!r}" if version else repr(name)
    return f"this engine has no operation {which} on topic {topic!r}"
