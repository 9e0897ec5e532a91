"""Jinja's language for templates, with a budget. Nothing in here knows of graphs.

`syntax` reads a source, `nodes` does what it says, `filters` has what is called by name, `budget` counts.
"""
