"""The template language of Jinja, with a budget for rendering. This package does not depend on graphs.

`lexer` splits a source into tags and words. `template` compiles statements, and `expressions` compiles expressions.
`filters` has the filters, tests and functions, `values` has the operators, and `budget` counts steps.
"""
