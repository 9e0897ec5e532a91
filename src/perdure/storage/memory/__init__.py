"""The store in memory."""

from perdure.storage.memory.database import MemoryDatabase
from perdure.storage.memory.store import MemoryStore

__all__ = ["MemoryDatabase", "MemoryStore"]
