"""The public API by nouns: handles of runs and roots, and the facets of an engine or a client, one per module.

A facet is a small class that is given the session. What several of them need is a function of the session.
"""
