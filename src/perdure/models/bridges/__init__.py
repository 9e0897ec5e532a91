"""Code that connects two models: functions and graphs that emit messages of structured cooperation."""
