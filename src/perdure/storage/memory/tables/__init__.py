"""The tables of the store in memory: what they hold, and how they change."""
