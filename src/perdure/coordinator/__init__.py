"""The only part of an engine that writes. It takes ops, asks the kernel, commits in batches, and then replies and
performs effects.
"""
