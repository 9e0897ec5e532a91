"""The pure core: statuses, ops, decisions. No async, no I/O, no clock, no randomness; stdlib and msgspec only."""
