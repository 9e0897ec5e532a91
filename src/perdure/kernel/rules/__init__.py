"""The rules of the kernel, one module per noun. Each rule is a pure function of a run, an op and its inputs."""
