"""CEL, the Common Expression Language: parsed, checked and evaluated within a budget. It does not depend on graphs.

`syntax` reads a text into nodes, `compiler` makes functions of them, `values` has CEL's types and operators,
`functions` the functions that expressions may call, `patterns` the regular expressions of `matches`, and `budget` the
limits of an evaluation.
"""
