"""Tokens and sessions. Versions follow one another, and expired sessions are removed a few at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import CommitConflict
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.runless_rows import SharedWrites
from perdure.testing.conformance.base import Rules, a_run, insert


def a_token(version: int = 1, name: str = "ci", **other: Any) -> StoredToken:
    given: dict[str, Any] = {"digest": f"d-{version}", "actor": "ann", "at": 5, "body": '{"ü": 1}'} | other
    return StoredToken(name=name, version=version, **given)


def a_session(id: str, until: int, **other: Any) -> StoredSession:
    given: dict[str, Any] = {"actor": "ann", "at": 5, "body": "{}"} | other
    return StoredSession(id=id, until=until, **given)


def added(*tokens: StoredToken) -> SharedWrites:
    return SharedWrites(tokens=[*tokens])


def come(*sessions: StoredSession) -> SharedWrites:
    return SharedWrites(sessions=[(one.id, one) for one in sessions])


class AccessRules(Rules):
    async def test_versions_of_a_token_come_one_after_the_other(self) -> None:
        async with self.author() as author:
            store = author.store
            assert await store.token("ci") is None
            assert await store.tokens() == []
            with pytest.raises(CommitConflict):
                await author.commit(shared=added(a_token(2)))
            await author.commit(shared=added(a_token(1)))
            for outdated in (a_token(1), a_token(1, digest="other"), a_token(3)):
                with pytest.raises(CommitConflict):
                    await author.commit(insert(a_run()), shared=added(outdated))
            assert await store.load(["r-1"]) == {}
            await author.commit(shared=added(a_token(2), a_token(1, "aa")))
            assert await store.token("ci") == a_token(2)
            assert [(one.name, one.version) for one in await store.tokens()] == [("aa", 1), ("ci", 2)]
            assert [one.name for one in await store.tokens(after="aa")] == ["ci"]
            assert [one.name for one in await store.tokens(limit=1)] == ["aa"]
            versions = [a_token(1, "aa"), a_token(1), a_token(2)]
            assert await store.token_versions() == versions
            assert await store.token_versions(after=("aa", 1), limit=1) == versions[1:2]
            assert await store.token_versions(after=("ci", 2)) == []

    async def test_of_those_who_write_the_same_version_at_once_one_succeeds(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            for version in range(1, 11):
                tokens = [a_token(version, digest=author.id) for author in (one, other)]
                writing = (one.commit(shared=added(tokens[0])), other.commit(shared=added(tokens[1])))
                outcomes = await asyncio.gather(*writing, return_exceptions=True)
                assert [type(one) for one in outcomes if isinstance(one, BaseException)] == [CommitConflict]

    async def test_the_last_use_of_a_token_is_kept_over_its_versions(self) -> None:
        async with self.author() as author:
            store = author.store
            await store.use_token("nobody", at=1)
            await author.commit(shared=added(a_token(1)))
            await store.use_token("ci", at=70)
            await store.use_token("ci", at=60)
            assert await store.token("ci") == replace(a_token(1), used_at=70)
            await author.commit(shared=added(a_token(2), a_token(3)))
            assert await store.token("ci") == replace(a_token(3), used_at=70)

    async def test_a_session_is_there_until_it_is_ended(self) -> None:
        async with self.author() as author:
            store = author.store
            assert await store.session("s") is None
            await author.commit(shared=come(a_session("s", 10)))
            await author.commit(shared=come(a_session("s", 99, actor="bob")))
            assert await store.session("s") == a_session("s", 10)
            await author.commit(shared=SharedWrites(sessions=[("s", None), ("s", None)]))
            assert await store.session("s") is None
            again = a_session("s", 20)
            await author.commit(shared=SharedWrites(sessions=[("s", again), ("s", None), ("s", again)]))
            assert await store.session("s") == again

    async def test_sessions_that_are_over_go_the_oldest_first(self) -> None:
        async with self.author() as author:
            store = author.store
            await author.commit(shared=come(*(a_session(f"s-{number}", until=number) for number in range(10))))
            assert await store.purge_sessions(at=6, limit=0) == 0
            assert await store.purge_sessions(at=6, limit=4) == 4
            assert await store.session("s-3") is None
            assert await store.session("s-4") is not None
            assert await store.purge_sessions(at=6, limit=4) == 3
            assert await store.purge_sessions(at=6, limit=4) == 0
            assert await store.session("s-7") is not None
