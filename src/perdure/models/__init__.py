"""The three ways to write a workflow. No model imports another model."""
