"""What all models and all faces need: values as JSON and back, checks of arguments, times, failures, limits."""
