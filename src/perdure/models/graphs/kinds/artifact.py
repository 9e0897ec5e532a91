"""Nodes that stage an artifact of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from perdure.errors import InvalidArguments, UnstorableValue
from perdure.models.functions.artifacts import Draft, artifact_output, draft_of
from perdure.models.functions.publications import add_output_nowait
from perdure.models.graphs.context import Scope
from perdure.models.graphs.kinds.base import Done, Kind, Preparing, Task, kind
from perdure.models.graphs.templates import text_of
from perdure.ports import derived_id
from perdure.values.checks import checked_text


def stage_in(task: Task, draft: Draft, by: str) -> None:
    """Stage an artifact of a graph's run. The artifact's id is computed from the run and from the artifacts that were
    staged before, so it is the same in every replay. From now on, expressions in all branches see the id as
    `artifacts.<name>`.
    """
    root = task.view.scope.root
    count: int = root.find("staged", "count", 0) + 1
    artifact_id = derived_id(task.loop.now(), f"{task.loop.run_id}/{count}")
    add_output_nowait(task.loop, artifact_output(replace(draft, id=artifact_id), by))
    noted(root, {draft.name: artifact_id})


def noted(root: Scope, staged: Mapping[str, str]) -> None:
    """Make the ids of staged artifacts visible to expressions in all branches. `staged` has the ids by name."""
    root.put("staged", "count", root.find("staged", "count", 0) + len(staged))
    for name, artifact_id in staged.items():
        root.put("artifacts", name, artifact_id)


@kind
class Artifact(Kind, frozen=True, kw_only=True, tag="artifact"):
    """Stages an artifact. The content is the value of the expressions in `value` (a text stays as it is, anything else
    becomes JSON), or the text of a `template`. `name` is a template too. Both templates can use the names in `input`,
    the fields of the run's input, and the roots of the context.

    The commit in which the run succeeds publishes the artifact. If the run does not succeed, the artifact is never
    published. The result is {name, type, media_type, size, digest}. The node needs no commit of its own.
    """

    name: str
    value: Any = None
    template: str | None = None
    type: str = ""
    media_type: str | None = None

    def prepare(self, about: Preparing) -> ArtifactWork:
        self.refuse(about, "retry", "timeout")
        if (self.value is None) == (self.template is None):
            raise about.wrong("value", "an artifact has either a value or a template")
        if self.input is not None and not isinstance(self.input, Mapping):
            raise about.wrong("input", "it maps the names that the templates use to expressions")
        return ArtifactWork(self, about)


class ArtifactWork:
    __slots__ = ("_by", "_mapped", "_media_type", "_name", "_template", "_type", "_value")

    def __init__(self, spec: Artifact, about: Preparing) -> None:
        names = frozenset(spec.input or {})
        self._by = about.node
        self._mapped = about.values(spec.input or {}, "input")
        self._name = text_of(spec.name, about, "name", names)
        self._value = about.values(spec.value, "value")
        self._template = None if spec.template is None else text_of(spec.template, about, "template", names)
        self._type = spec.type
        self._media_type = spec.media_type
        for field, text in (("name", spec.name), ("type", spec.type or "-"), ("media_type", spec.media_type or "-")):
            try:
                checked_text(text, f"an artifact's {field}")
            except InvalidArguments as error:
                raise about.wrong(field, str(error)) from error

    def begin(self, task: Task) -> Done:
        mapped = self._mapped.evaluate(task.view)
        name = self._name.render(mapped, task.input, task.view)
        if self._template is None:
            value = self._value.evaluate(task.view)
        else:
            value = self._template.render(mapped, task.input, task.view)
        try:
            draft = draft_of(name, value, self._type, self._media_type, task.loop.payload_max)
        except (InvalidArguments, UnstorableValue) as error:
            raise InvalidArguments(f"{task.place}: {error}") from error
        stage_in(task, draft, self._by)
        return Done(
            {
                "name": draft.name,
                "type": draft.type,
                "media_type": draft.media_type,
                "size": draft.size,
                "digest": draft.digest,
            }
        )
