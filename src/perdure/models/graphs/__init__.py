"""Graphs: workflows as data. Tokens execute them, split at forks and meet at joins."""
