"""The rows of what an activation of workflow code says: published values, items of streams, staged artifacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.kernel.records import PublishedValue, StreamItem
from perdure.kernel.stock import Artifact, Stock
from perdure.models.functions.artifacts import StagePost, brought
from perdure.models.functions.commands import Post
from perdure.ports import Codec, Ids


def rows_of(
    run_id: str, outputs: Sequence[Post], at: int, encode: Callable[[str], str] | None
) -> tuple[tuple[PublishedValue, ...], tuple[StreamItem, ...]]:
    """Of each key the last value, and all items."""
    values: dict[str, PublishedValue] = {}
    items: list[StreamItem] = []
    for post in outputs:
        if isinstance(post, StagePost):
            continue
        text = post.value if encode is None else encode(post.value)
        if post.is_item:
            items.append(StreamItem(run_id=run_id, stream=post.name, value=text, at=at, mark=post.mark))
        else:
            values[post.name] = PublishedValue(run_id=run_id, key=post.name, value=text, at=at, mark=post.mark)
    return tuple(values.values()), tuple(items)


def stock_of(run_id: str, workflow: str, outputs: Sequence[Post], at: int, ids: Ids, codec: Codec) -> Stock | None:
    """The artifacts that are staged; None if there are none."""
    stock = Stock()
    for post in outputs:
        if isinstance(post, StagePost):
            artifact = Artifact(
                id=post.draft.id or ids(at),
                run_id=run_id,
                name=post.name,
                type=post.draft.type,
                form=post.draft.form,
                media_type=post.draft.media_type,
                size=post.draft.size,
                digest=post.draft.digest,
                workflow=workflow,
                step=post.by,
                seq=post.mark[0],
                number=post.mark[1],
                staged_at=at,
            )
            brought(artifact, post.draft, codec, stock)
    return stock if stock.artifacts else None
