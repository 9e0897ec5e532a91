"""Numbered SQL files, applied in order. See perdure.storage.postgres.schema."""
