"""The public API by nouns: the handles of runs and root emissions, and the facets of an engine or a client. Each handle
and each facet has a module.

A facet is a small class that keeps a reference to the session. Code that several facets need is in functions that take
the session.
"""
