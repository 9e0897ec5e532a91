"""The rules of the kernel, one module per noun. Each is a pure function of a run, an op and what was looked up."""
