"""The public API is what `public_api.txt` says: a change of it is seen, and meant."""

from __future__ import annotations

import difflib

from tests.api.snapshot import PATH, whole


def test_the_public_api_is_the_one_that_was_agreed_on() -> None:
    was, became = PATH.read_text().splitlines(), whole().splitlines()
    diff = "\n".join(difflib.unified_diff(was, became, PATH.name, "the code", lineterm="", n=0))
    assert not diff, f"the public API has changed; if that is meant, run `python -m tests.api.snapshot`:\n{diff}"
