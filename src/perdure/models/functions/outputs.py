"""The rows of the outputs of workflow code: published values, stream items, staged artifacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.kernel.artifacts import Artifact, ArtifactWrites
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.models.functions.artifacts import ArtifactOutput, brought
from perdure.models.functions.commands import Output
from perdure.ports import Codec, Ids


def rows_of(
    run_id: str, outputs: Sequence[Output], at: int, encode: Callable[[str], str] | None
) -> tuple[tuple[PublishedValue, ...], tuple[StreamItem, ...]]:
    """Return the last value of each published key, and all stream items, as rows."""
    values: dict[str, PublishedValue] = {}
    items: list[StreamItem] = []
    for output in outputs:
        if isinstance(output, ArtifactOutput):
            continue
        text = output.value if encode is None else encode(output.value)
        if output.is_item:
            items.append(StreamItem(run_id=run_id, stream=output.name, value=text, at=at, mark=output.mark))
        else:
            values[output.name] = PublishedValue(run_id=run_id, key=output.name, value=text, at=at, mark=output.mark)
    return tuple(values.values()), tuple(items)


def artifacts_of(
    run_id: str, workflow: str, outputs: Sequence[Output], at: int, ids: Ids, codec: Codec
) -> ArtifactWrites | None:
    """Return the artifacts among the outputs, as writes of an op. Return None if no output is an artifact."""
    staged = ArtifactWrites()
    for output in outputs:
        if isinstance(output, ArtifactOutput):
            artifact = Artifact(
                id=output.draft.id or ids(at),
                run_id=run_id,
                name=output.name,
                type=output.draft.type,
                form=output.draft.form,
                media_type=output.draft.media_type,
                size=output.draft.size,
                digest=output.draft.digest,
                workflow=workflow,
                step=output.by,
                seq=output.mark[0],
                number=output.mark[1],
                staged_at=at,
            )
            brought(artifact, output.draft, codec, staged)
    return staged if staged.artifacts else None
