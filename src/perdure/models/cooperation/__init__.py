"""Structured cooperation: operations handle messages in steps. If an operation fails, the operations of its hierarchy
undo their work together.

The modules for definitions, rows, progress and the machine are pure. They do not wait, read a clock, create an id or
use a store. The runner applies the machine to runs in memory. The host keeps the runs in memory. The parts of the host
run the code of runs, and commit the drafts of runs.
"""
