"""Durable functions: a workflow written as an async function, run on a deterministic loop of its own."""
