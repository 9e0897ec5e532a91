"""Checks of what callers give to be stored: ids, tags, remarks."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.errors import InvalidArguments
from perdure.models.functions.values import UNSTORABLE_TEXT

_TEXT_MAX_CHARS = 500
_REASON_MAX_CHARS = 10_000


def checked_text(text: object, what: str, chars_max: int = _TEXT_MAX_CHARS) -> str:
    """Text that every store can hold as a key. Raises InvalidArguments."""
    if not isinstance(text, str) or not 0 < len(text) <= chars_max:
        raise InvalidArguments(f"{what} is a text of 1 to {chars_max} characters, not {text!r:.80}")
    if UNSTORABLE_TEXT.search(text) is not None:
        raise InvalidArguments(f"{what} cannot contain NUL or lone surrogates: {text!r:.80}")
    return text


def checked_remark(reason: str, actor: str) -> None:
    """Raises InvalidArguments."""
    checked_text(actor, "an actor")
    if reason:
        checked_text(reason, "a reason", _REASON_MAX_CHARS)


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Raises InvalidArguments."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidArguments(f"tags are a mapping, as in tags={{'tenant': 'acme'}}, not {tags!r:.80}")
    return {checked_text(key, "a tag's key"): checked_text(value, f"tag {key!r}") for key, value in tags.items()}
