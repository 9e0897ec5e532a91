"""Artifacts: a batch stages them, the end of their run publishes them, and readers read them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import CommitConflict, CommitRefused
from perdure.kernel.artifacts import Artifact, ArtifactWrites, Chunk
from perdure.kernel.status import Status
from perdure.ports import ArtifactFilter, Store, Within
from perdure.testing.conformance.base import Author, Rules, a_run, an_entry, insert, update


def an_artifact(artifact_id: str = "a-1", **fields: Any) -> Artifact:
    defaults: dict[str, Any] = {
        "run_id": "r-1",
        "name": "report",
        "type": "text",
        "form": "text",
        "media_type": "text/plain",
        "size": 2,
        "digest": "d",
        "workflow": "checkout",
        "position": "1",
        "seq": 1,
        "staged_at": 3,
        "content": "in",
    }
    return Artifact(id=artifact_id, **defaults | fields)


def a_chunk(artifact_id: str = "a-1", number: int = 0, data: bytes = b"data", run_id: str = "r-1") -> Chunk:
    return Chunk(run_id=run_id, artifact_id=artifact_id, number=number, data=data)


def staged(*artifacts: Artifact, **parts: Any) -> ArtifactWrites:
    return ArtifactWrites(artifacts=list(artifacts), **parts)


async def _listed(store: Store, **wanted: Any) -> list[str]:
    return [one.id for one in await store.artifacts(ArtifactFilter(**wanted))]


class ArtifactRules(Rules):
    async def test_what_is_staged_is_seen_only_by_who_asks_for_it(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), artifacts=staged(an_artifact()))
            assert await _listed(author.store) == []
            assert await author.store.artifact(name="report") is None
            assert await _listed(author.store, staged=True) == ["a-1"]
            assert await author.store.artifact(id="a-1") == an_artifact()

    async def test_a_list_of_artifacts_leaves_out_those_of_other_runs(self) -> None:
        async with self.author() as author:
            runs = [
                a_run("r-1", workflow="one", tags={"tenant": "acme"}),
                a_run("r-2", workflow="two", tags={"tenant": "other"}),
            ]
            for number, run in enumerate(runs, 1):
                made = an_artifact(f"a-{number}", run_id=run.id)
                await author.commit(insert(run), artifacts=staged(made))
            cases: list[tuple[Within | None, list[str]]] = [
                (None, ["a-2", "a-1"]),
                (Within(), []),
                (Within(workflows=("two", "three")), ["a-2"]),
                (Within(tags=(("tenant", "acme"),)), ["a-1"]),
                (Within(workflows=("two",), tags=(("tenant", "acme"),)), ["a-2", "a-1"]),
            ]
            for within, found in cases:
                for more in ({}, {"name": "report"}, {"type": an_artifact().type}):
                    assert await _listed(author.store, within=within, staged=True, **more) == found
                of_one = [one for one in found if one == "a-1"]
                assert await _listed(author.store, within=within, staged=True, run_id="r-1") == of_one

    async def test_the_end_of_a_run_publishes_what_it_has_staged_in_the_order_of_staging(self) -> None:
        async with self.author() as author:
            later = an_artifact("a-0", seq=2, number=1)
            first = an_artifact("a-2", seq=1, number=1)
            other = an_artifact("a-3", name="other", seq=1, number=2)
            await author.commit(insert(a_run()), artifacts=staged(later, first, other))
            await author.commit(at=9, artifacts=ArtifactWrites(fates={"r-1": "published"}))
            versions = {one.id: one.version for one in await author.store.artifacts(ArtifactFilter())}
            assert versions == {"a-3": 1, "a-2": 1, "a-0": 2}
            expected = msgspec.structs.replace(later, state="published", version=2, published_at=9)
            assert await author.store.artifact(name="report") == expected
            assert (await author.store.artifact(name="report", version=1) or later).id == "a-2"
            assert await author.store.artifact(name="report", version=3) is None

    async def test_what_is_staged_and_published_in_one_batch_goes_on_with_the_versions_there_are(self) -> None:
        async with self.author() as author:
            for number in range(1, 4):
                run_id = f"r-{number}"
                added = staged(an_artifact(f"a-{number}", run_id=run_id), fates={run_id: "published"})
                await author.commit(insert(a_run(run_id)), artifacts=added)
            newest = await author.store.artifact(name="report")
            assert newest is not None
            assert (newest.id, newest.version) == ("a-3", 3)

    async def test_several_runs_that_end_in_one_batch_publish_one_after_the_other(self) -> None:
        async with self.author() as author:
            runs = [f"r-{number}" for number in range(1, 6)]
            added = staged(*(an_artifact(f"a-{run_id}", run_id=run_id) for run_id in runs))
            await author.commit(*(insert(a_run(run_id)) for run_id in runs), artifacts=added)
            await author.commit(artifacts=ArtifactWrites(fates=dict.fromkeys(reversed(runs), "published")))
            found = {one.run_id: one.version for one in await author.store.artifacts(ArtifactFilter())}
            assert found == {"r-5": 1, "r-4": 2, "r-3": 3, "r-2": 4, "r-1": 5}

    async def test_engines_that_publish_at_the_same_time_never_give_a_version_twice(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:

            async def work(author: Author) -> None:
                for number in range(10):
                    run_id = f"{author.id}-{number}"
                    added = staged(
                        an_artifact(f"{run_id}-b", run_id=run_id),
                        an_artifact(f"{run_id}-a", run_id=run_id, name="other"),
                    )
                    await author.commit(insert(a_run(run_id, owner=author.id)), artifacts=added)
                    ended = update(a_run(run_id, owner=author.id), status=Status.SUCCEEDED, owner=None, completed_at=7)
                    await author.commit(ended, artifacts=ArtifactWrites(fates={run_id: "published"}))

            await asyncio.gather(work(one), work(other))
            for name in ("report", "other"):
                found = await one.store.artifacts(ArtifactFilter(name=name))
                assert sorted(artifact.version or 0 for artifact in found) == list(range(1, 21))

    async def test_what_a_cancelled_run_has_staged_is_gone(self) -> None:
        async with self.author() as author:
            added = staged(an_artifact(content=None, chunks=1), chunks=[a_chunk()])
            await author.commit(insert(a_run()), artifacts=added)
            await author.commit(artifacts=ArtifactWrites(fates={"r-1": "gone"}))
            assert await _listed(author.store, staged=True) == []
            assert await author.store.artifact(id="a-1") is None
            assert await author.store.chunk("a-1", 0) is None

    async def test_what_a_failed_run_has_staged_is_seen_by_nobody_and_comes_back_with_a_retry(self) -> None:
        async with self.author() as author:
            kept, anew = an_artifact("a-1", seq=1), an_artifact("a-2", seq=2, content=None, chunks=1)
            journal = [an_entry(seq=1), an_entry(seq=2)]
            await author.commit(insert(a_run()), journal=journal, artifacts=staged(kept, anew, chunks=[a_chunk("a-2")]))
            await author.commit(artifacts=ArtifactWrites(fates={"r-1": "aside"}))
            assert await _listed(author.store, staged=True) == []
            assert await author.store.artifact(id="a-1") is None
            await author.commit(archive=[("r-1", 2, 1)], artifacts=ArtifactWrites(fates={"r-1": "staged"}))
            assert await _listed(author.store, staged=True) == ["a-1"]
            assert await author.store.chunk("a-2", 0) is None

    async def test_what_workflow_code_stages_again_is_there_once(self) -> None:
        async with self.author() as author:
            said = {"position": "", "seq": 0, "number": 1}
            await author.commit(insert(a_run()), artifacts=staged(an_artifact("a-1", **said)))
            again = an_artifact("a-2", content=None, chunks=1, **said)
            more = an_artifact("a-3", position="", seq=0, number=2)
            of_a_step = an_artifact("a-4", position="1", seq=0, number=1)
            await author.commit(artifacts=staged(again, more, of_a_step, chunks=[a_chunk("a-2")]))
            assert await _listed(author.store, staged=True) == ["a-4", "a-3", "a-1"]
            assert await author.store.chunk("a-2", 0) is None

    async def test_a_run_that_goes_on_as_another_call_keeps_what_it_has_staged(self) -> None:
        async with self.author() as author:
            names = ["a-4", "a-2", "a-3", "a-1"]
            await author.commit(insert(a_run()))
            for artifact_id in names:
                await author.commit(artifacts=staged(an_artifact(artifact_id, position="", seq=0, number=1)))
                await author.commit(continued=["r-1"])
            await author.commit(artifacts=ArtifactWrites(fates={"r-1": "published"}))
            found = {one.id: one.version for one in await author.store.artifacts(ArtifactFilter())}
            assert found == {artifact_id: version for version, artifact_id in enumerate(names, 1)}

    async def test_content_comes_back_chunk_by_chunk(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), artifacts=ArtifactWrites(chunks=[a_chunk(data=b"\0\xff" * 400_000)]))
            await author.commit(artifacts=ArtifactWrites(chunks=[a_chunk(number=1, data=b"end")]))
            await author.commit(artifacts=staged(an_artifact(form="bytes", content=None, chunks=2)))
            await author.commit(artifacts=ArtifactWrites(fates={"r-1": "published"}))
            found = [await author.store.chunk("a-1", number) for number in range(3)]
            assert found == [b"\0\xff" * 400_000, b"end", None]

    async def test_chunks_that_came_to_nothing_go_when_told_or_with_their_run(self) -> None:
        async with self.author() as author:
            chunks = [a_chunk("a-1"), a_chunk("a-2"), a_chunk("a-3")]
            await author.commit(insert(a_run()), artifacts=ArtifactWrites(chunks=chunks))
            await author.commit(artifacts=staged(an_artifact("a-1", content=None, chunks=1)))
            await author.commit(artifacts=ArtifactWrites(chunks_gone=["a-1", "a-2"]))
            assert [await author.store.chunk(f"a-{number}", 0) for number in (1, 2, 3)] == [b"data", None, b"data"]
            await author.commit(artifacts=ArtifactWrites(fates={"r-1": "published"}))
            assert await author.store.chunk("a-3", 0) is None

    async def test_artifacts_are_listed_by_name_run_and_type(self) -> None:
        async with self.author() as author:
            added = staged(
                an_artifact("a-1"),
                an_artifact("a-2", name="other"),
                an_artifact("a-3", type="table"),
                an_artifact("a-4", run_id="r-2"),
                fates={"r-1": "published"},
            )
            await author.commit(insert(a_run()), insert(a_run("r-2")), artifacts=added)
            store = author.store
            assert await _listed(store) == ["a-3", "a-2", "a-1"]
            assert await _listed(store, staged=True) == ["a-4", "a-3", "a-2", "a-1"]
            assert await _listed(store, name="report") == ["a-3", "a-1"]
            assert await _listed(store, name="report", staged=True) == ["a-4", "a-3", "a-1"]
            assert await _listed(store, name="report", type="text") == ["a-1"]
            assert await _listed(store, type="table") == ["a-3"]
            assert await _listed(store, run_id="r-1", name="report") == ["a-3", "a-1"]
            assert await _listed(store, run_id="r-2") == []
            assert await _listed(store, limit=2) == ["a-3", "a-2"]
            for wanted in ({}, {"run_id": "r-1"}, {"name": "report"}, {"type": "text"}):
                assert await _listed(store, after="a-2", **wanted) == ["a-1"]
            assert all(one.content is None for one in await store.artifacts(ArtifactFilter()))

    async def test_a_batch_that_fails_stages_and_publishes_nothing(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(owner=author.id)), artifacts=staged(an_artifact()))
            ended: dict[str, Any] = {"artifacts": staged(an_artifact("a-2"), fates={"r-1": "published"})}
            with pytest.raises(CommitConflict):
                await author.commit(update(a_run(owner=author.id, version=9)), **ended)
            with pytest.raises(CommitRefused):
                await author.commit(artifacts=staged(an_artifact("a-2"), an_artifact("a-3", content="\ud800")))
            assert await _listed(author.store, staged=True) == ["a-1"]
            assert await _listed(author.store) == []

    async def test_a_batch_sent_again_publishes_once(self) -> None:
        async with self.author() as author:
            batch = author.batch(insert(a_run()), artifacts=staged(an_artifact(), fates={"r-1": "published"}))
            await author.store.commit(batch)
            await author.store.commit(batch)
            assert await _listed(author.store) == ["a-1"]

    @pytest.mark.parametrize("text", ["", " ", "'", "%_?*", "𝕌\u202e\ufeff", "line\nline\ttab", "null"])
    async def test_odd_names_of_artifacts_come_back(self, text: str) -> None:
        async with self.author() as author:
            odd = an_artifact(name=text, type=text, content=text, step=text, media_type=text)
            await author.commit(insert(a_run()), artifacts=staged(odd, fates={"r-1": "published"}))
            found = await author.store.artifact(name=text)
            assert found is not None
            assert (found.name, found.type, found.content, found.step) == (text, text, text, text)
            assert await _listed(author.store, type=text) == ["a-1"]
