"""The workflows that an engine can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import DuplicateWorkflow, Misuse, UnknownWorkflow
from perdure.models.functions.define import RunCall, StepCall, Stub, Workflow, decorated_workflows
from perdure.ports import Offer


def named(workflow: str, version: str) -> str:
    """A workflow and its version, for people."""
    return f"workflow {workflow!r} version {version!r}" if version else f"workflow {workflow!r}"


def called(call: RunCall[Any]) -> Workflow[Any, Any]:
    """The workflow that was called. Raises Misuse."""
    if type(call) is RunCall:
        return call.workflow
    if isinstance(call, StepCall):
        raise Misuse(f"{call!r} cannot be started: only workflows can; await the step inside one")
    raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")


class Registry(Mapping[tuple[str, str], Workflow[Any, Any]]):
    """Workflows by name and version: those given, or (None) all that were decorated, also those that will be."""

    def __init__(self, workflows: Iterable[Workflow[Any, Any]] | None) -> None:
        self._given = None if workflows is None else list(workflows)
        self._known: dict[tuple[str, str], Workflow[Any, Any]] = {}

    def load(self) -> None:
        """Raises DuplicateWorkflow, Misuse."""
        for workflow in self._given if self._given is not None else decorated_workflows():
            self.add(workflow)

    def add(self, workflow: Workflow[Any, Any]) -> None:
        if not isinstance(workflow, Workflow):
            raise Misuse(f"workflows=[…] takes what @workflow made, not {workflow!r}")
        key = (workflow.name, workflow.version)
        known = self._known.get(key)
        if known is not None and known is not workflow:
            same = f"are named {workflow.name!r}" + (f" and have version {key[1]!r}" if key[1] else "")
            raise DuplicateWorkflow(
                f"two workflows {same}: {known.where} and {workflow.where}; give one of them another name or version "
                "with @workflow(name=…, version=…), or say which to use with Engine(workflows=[…])"
            )
        self._known[key] = workflow

    def offers(self) -> list[Offer]:
        """The code that is here, as the store wants to know it."""
        return [Offer(name, version, workflow.fingerprint) for (name, version), workflow in self._known.items()]

    def of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """The workflow of a call that is to be started. Raises Misuse, UnknownWorkflow, DuplicateWorkflow."""
        workflow = called(call)
        if isinstance(workflow, Stub):
            return workflow
        if self._known.get((workflow.name, workflow.version)) is not workflow:
            if self._given is not None:
                known = ", ".join(sorted(f"{name} {version}".rstrip() for name, version in self._known)) or "none"
                raise UnknownWorkflow(
                    f"this engine does not run {named(workflow.name, workflow.version)}, only: {known}; "
                    "add it to Engine(workflows=[…])"
                )
            self.add(workflow)
        return workflow

    def __getitem__(self, key: tuple[str, str]) -> Workflow[Any, Any]:
        if key not in self._known and self._given is None:
            # It may have been defined since; a name of which there are two by now is nobody's.
            found = [workflow for workflow in decorated_workflows() if (workflow.name, workflow.version) == key]
            if len(found) == 1:
                self.add(found[0])
        return self._known[key]

    def __contains__(self, key: object) -> bool:
        return key in self._known or super().__contains__(key)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
