"""Structured cooperation: operations that handle messages in steps, and undo them together when one of them fails.

Definitions, rows, progress and the machine are pure: they do not wait, read a clock, make an id or touch a store. The
runner applies the machine to runs in memory. The host keeps the runs. Its parts run their code and commit their drafts.
"""
