"""The public API by nouns: handles of runs and roots, and the facets of an engine or a client, one per module.

A facet is a small class that has the session. Code that several facets need is in functions that take the session.
"""
