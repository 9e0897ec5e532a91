"""The tables of the store in memory: their rows, and the changes to them."""
