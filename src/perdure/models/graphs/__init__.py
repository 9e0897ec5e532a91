"""Graphs: workflows as data. Tokens move through a graph. They split at forks and meet at joins."""
