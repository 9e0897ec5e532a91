"""Modules that all models share: values as JSON and back, checks of arguments, times, failures, limits."""
