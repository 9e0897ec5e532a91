"""The pure core: statuses, ops and decisions. It has no async code, no I/O, no clock and no randomness. It uses only
the standard library and msgspec.
"""
