"""Jinja's language for templates, with a budget. Nothing in here depends on graphs.

`lexer` splits a source into tags and words, `template` compiles statements, `expressions` compiles expressions,
`filters` has the filters, tests and functions, `values` the operators, and `budget` counts steps.
"""
