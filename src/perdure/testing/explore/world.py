"""The world outside of an explored workflow: fakes of the services that its steps use, and the content of these
fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

__all__ = ["Factories", "World", "factories_of"]

Factories = Mapping[type[Any], Callable[[], Any]]
Snapshot = dict[str, Any]


def factories_of(world: Factories | type[Any] | None) -> dict[type[Any], Callable[[], Any]]:
    """Return the factories of a world's services."""
    if world is None:
        return {}
    return {world: world} if isinstance(world, type) else {**world}


class World:
    """The services of one trial. They outlive the engine, as services outside a process do."""

    def __init__(self, factories: Factories, observe: Callable[[Any], Any] | None) -> None:
        self._services = {kind: make() for kind, make in factories.items()}
        self._observe = observe

    @property
    def resources(self) -> dict[type[Any], Callable[[], Any]]:
        """The services as resources of an engine."""
        return {kind: _always(service) for kind, service in self._services.items()}

    def observe(self) -> Snapshot:
        """Return a copy of the content of all services."""
        found: Snapshot = {}
        for kind, service in self._services.items():
            content = _content(service) if self._observe is None else self._observe(service)
            found[kind.__name__] = deepcopy(content)
        return found

    @staticmethod
    def differences(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
        """Return the places at which two snapshots differ, each with its value before and after."""
        return list(_differences("", before, after))


def _always(service: Any) -> Callable[[], Any]:
    return lambda: service


def _content(service: Any) -> Any:
    """Return the public attributes of a service."""
    if isinstance(service, Struct):
        return asdict(service)
    if hasattr(service, "__dict__"):
        return {name: value for name, value in vars(service).items() if not name.startswith("_")}
    return service


_NOTHING: Any = type("_Nothing", (), {"__repr__": lambda _self: "nothing"})()


def _differences(place: str, before: Any, after: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(
                f"{place}.{key}" if place else f"{key}", before.get(key, _NOTHING), after.get(key, _NOTHING)
            )
    elif before != after:
        yield place, before, after
