"""CEL, the Common Expression Language: its parser, its checks, and its evaluation within a budget. This package does
not depend on graphs.

`syntax` parses a text into nodes, and `compiler` turns the nodes into functions. `values` has CEL's types and
operators, and `functions` has the functions that expressions may call. `patterns` has the regular expressions of
`matches`, and `budget` the limits of an evaluation.
"""
