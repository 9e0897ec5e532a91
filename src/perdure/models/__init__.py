"""The three ways to write a workflow: equal rooms, none of which imports another."""
