"""What the engine does per second, beside a floor of the same rows with no engine around them: `python -m bench`."""
