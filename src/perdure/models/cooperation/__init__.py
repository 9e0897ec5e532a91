"""Structured cooperation: operations that handle messages in steps, and undo them together when one of them fails.

This is the pure half: definitions, rows and rules. Nothing here waits, reads a clock, makes an id or touches a store.
"""
