"""Words that were replaced stay out of the code: one word, one meaning (see docs/glossary.md)."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "perdure"

# What was said before, and what is said now.
RETIRED = {
    "bury": "mark_dead_engines",
    "buried": "marked dead",
    "mourn": "note_dead_engines",
    "owe": "enqueue",
    "insist": "submit_internal",
    "prove": "check_fence",
    "Prove": "CheckFence",
    "Scene": "DecisionInput",
    "scene": "inputs",
    "deliberate": "decide_batch",
    "Deliberation": "DecidedBatch",
    "drafted": "insertable_batch",
    "drafted_emission": "insertable_emission",
    "Assembly": "BatchBuilder",
    "Book": "HandlerRegistry",
    "untold": "unannounced",
    "Speaking": "StreamWriter",
    "hush": "discard_pending",
    "Cargo": "StepJob",
    "knock": "wake_mail",
    "Onward": "Continuation",
    "hops": "continued",
    "hold_back": "suppress_emission",
    "PostOffice": "MailRoom",
}
# A picture of a graph is made of boxes, and so is a table in a terminal.
BOXES = {"Box": "Mailbox", "box": "mailbox", "boxes": "mailboxes"}
# Words in -ing that are nouns of the field, or adjectives.
NOUNS = {"blocking", "testing"}


def names(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def test_no_retired_word_is_a_name_in_the_code() -> None:
    found = []
    for path in modules():
        retired = RETIRED if {"graphs", "dashboard", "cli"} & {*path.parts} else RETIRED | BOXES
        place = path.relative_to(ROOT)
        found += [f"{place}:{line} {name}: say {retired[name]}" for line, name in names(path) if name in retired]
    assert not found, "\n".join(found)


def test_the_words_are_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("# owe\ndef insist() -> str:\n    return 'prove'\n")
    assert [name for _, name in names(path) if name in RETIRED] == ["insist"]


def test_no_module_is_a_gerund() -> None:
    found = [
        str(path.relative_to(ROOT)) for path in modules() if re.search(r"ing$", path.stem) and path.stem not in NOUNS
    ]
    assert not found


@pytest.mark.parametrize("word", sorted(RETIRED))
def test_a_retired_word_is_replaced_by_one_that_is_not(word: str) -> None:
    assert RETIRED[word] not in RETIRED
