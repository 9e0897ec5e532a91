"""CEL, the Common Expression Language: parsed, checked and evaluated within a budget. It does not depend on graphs.

`syntax` reads a text into nodes, `compiler` makes functions of them, `values` has CEL's types and operators,
`functions` what expressions may call, `patterns` the regular expressions of `matches`, `budget` what an evaluation may
take.
"""
