"""Codecs: they encode payloads before they are stored."""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """Converts the JSON text of payloads to the stored text and back, for example to encrypt or compress it."""

    def encode(self, text: str) -> str: ...

    def decode(self, text: str) -> str: ...


class PlainCodec:
    """Stores payloads unchanged, so that a person can read them in the table."""

    def encode(self, text: str) -> str:
        return text

    def decode(self, text: str) -> str:
        return text
