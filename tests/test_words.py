"""Words that were replaced stay out of the code and of the prose: one word, one meaning (see docs/glossary.md).

Stored names do not change, so a few words stay where a stored name is read or written: see STORED.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "perdure"

# Names that were replaced, and the names to use.
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
    "cargo": "job",
    "knock": "wake_mail",
    "Onward": "Continuation",
    "hops": "continued",
    "hold_back": "suppress_emission",
    "PostOffice": "MailRoom",
    "Cooperator": "EngineAccess",
    "posts": "follow_ups, outputs",
    "_advance_aloud": "_advance_with_outputs",
    "stocking": "artifacts, tasks",
    "Hearing": "readiness as kernel state",
    "hearing": "readiness as kernel state",
    "Deaf": "readiness as kernel state",
    "Outlook": "Readiness",
    "Tell": "Notify",
    "TellMembers": "NotifyMembers",
    "Look": "Notified",
    "Box": "Mailbox",
    "box": "mailbox",
    "boxes": "mailboxes",
    "book": "registry",
    "Stock": "artifacts, tasks",
    "stock": "artifacts, tasks",
    "ripe": "due_runs",
    "Ripe": "DueRun",
    "look_up": "load_context",
    "Found": "BatchContext",
    "Post": "output",
    "post": "mail, output",
    "News": "notification",
    "news": "notification",
    "told": "notified",
    "heard": "received",
    "say": "add_output, print_text",
    "say_lines": "print_lines",
    "Said": "StreamEvent",
    "unsaid": "unwritten",
    "Speaker": "UnwrittenItems",
    "speaker": "unwritten",
    "Telling": "AnswerStream",
    "Proof": "FenceCheck",
    "proof": "fence_check",
    "_proof": "_fence_check",
    "tell": "notify, call_on_loop",
    "_tell": "_notify",
    "tell_others": "notify_others",
    "_told": "_message",
    "Unborn": "PendingBranches",
    "unborn": "pending",
}
# Folders in which a retired name means something else: a picture has boxes, HTTP has a verb POST, a look of a page, a
# record that was found.
ELSEWHERE: Mapping[str, frozenset[str]] = {
    "Box": frozenset({"graphs", "dashboard", "cli"}),
    "box": frozenset({"graphs", "dashboard", "cli"}),
    "boxes": frozenset({"graphs", "dashboard", "cli"}),
    "post": frozenset({"http", "dashboard"}),
    "Look": frozenset({"dashboard"}),
    "look_up": frozenset({"graphs"}),
    "Found": frozenset({"graphs", "values"}),
}
# Words that docstrings, comments, messages and pages do not use, and how to say it instead.
PROSE = {
    "mourn": "note that an engine is dead",
    "bury": "mark dead",
    "buried": "marked dead",
    "burial": "marking an engine dead",
    "deaf": "say what cannot be received",
    "hearing": "say what is received",
    "heard": "received",
    "scene": "input",
    "owe": "enqueue",
    "owes": "enqueues",
    "owed": "enqueued",
    "insist": "retry",
    "insists": "retries",
    "deliberate on": "decide",
    "untold": "not notified",
    "gifts": "matched events",
    "news": "notifications, changes",
    "told": "notified, or say who says what",
    "whoever": "name the engine, the caller or the reader",
}
# Words that are stored names too, and the modules that have them.
STORED = {
    "prose news": {"src/perdure/kernel/operation_notices.py", "src/perdure/kernel/ops.py"},
    "prose untold": {"src/perdure/models/cooperation/handler_registry.py"},
}
# Words in -ing that are nouns of the field, or adjectives.
NOUNS = {"blocking", "testing"}


def names(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def prose(path: Path) -> str:
    """Return the comments and texts of a module, or a page without its code."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    kinds = {tokenize.COMMENT, tokenize.STRING}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"])


def found() -> dict[str, set[str]]:
    """Return the files in which each word is found, by "name WORD" and "prose WORD"."""
    places: dict[str, set[str]] = {}
    for path in modules():
        place = str(path.relative_to(ROOT))
        for _, name in names(path.read_text()):
            if name in RETIRED and not ELSEWHERE.get(name, frozenset()) & {*path.parts}:
                places.setdefault(f"name {name}", set()).add(place)
    for path in [*modules(), *pages()]:
        text = prose(path).lower()
        for word in PROSE:
            if re.search(rf"\b{word}\b", text):
                places.setdefault(f"prose {word}", set()).add(str(path.relative_to(ROOT)))
    return places


def better(word: str) -> str:
    kind, _, name = word.partition(" ")
    return RETIRED[name] if kind == "name" else PROSE[name]


def test_no_retired_word_is_used_where_it_is_not_listed() -> None:
    new = {word: files - STORED.get(word, set()) for word, files in found().items()}
    assert not any(new.values()), "\n".join(
        f"{place}: {word}: say {better(word)}" for word, files in sorted(new.items()) for place in sorted(files)
    )


def test_every_stored_name_is_still_there() -> None:
    places = found()
    assert all(files <= places.get(word, set()) for word, files in STORED.items())


def test_the_words_are_looked_for(tmp_path: Path) -> None:
    text = "# owe\ndef insist() -> str:\n    return 'prove'\n"
    assert [name for _, name in names(text) if name in RETIRED] == ["insist"]
    path = tmp_path / "one.py"
    path.write_text(text)
    assert prose(path).split() == ["#", "owe", "'prove'"]
    page = tmp_path / "one.md"
    page.write_text("Say `told`, whoever reads.\n\n```python\nnews = 1\n```\n")
    assert [word for word in PROSE if re.search(rf"\b{word}\b", prose(page).lower())] == ["whoever"]


def test_no_module_is_a_gerund() -> None:
    gerunds = [
        str(path.relative_to(ROOT)) for path in modules() if re.search(r"ing$", path.stem) and path.stem not in NOUNS
    ]
    assert not gerunds


@pytest.mark.parametrize("word", sorted(RETIRED))
def test_a_retired_word_is_replaced_by_one_that_is_not(word: str) -> None:
    assert RETIRED[word] not in RETIRED
