"""Numbered SQL, applied in order; see perdure.storage.sqlite.schema."""
