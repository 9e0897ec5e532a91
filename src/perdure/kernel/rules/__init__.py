"""The rules of the kernel. Each module is named by a noun. Each rule is a pure function of a run, an op and its
inputs.
"""
