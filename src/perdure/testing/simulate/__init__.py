"""The simulator: several engines in one process, on a simulated database, under a seeded scheduler and virtual time."""
