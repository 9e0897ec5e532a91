"""Numbered SQL files, applied in order. See perdure.storage.sqlite.schema."""
