"""Numbered SQL, applied in order; see perdure.storage.postgres.schema."""
