"""The only writer: takes ops, asks the kernel, commits in batches, then answers and performs effects."""
