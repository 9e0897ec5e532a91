"""Graphs: workflows that are data, run by tokens that split at forks and meet at joins."""
