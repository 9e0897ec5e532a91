"""The code where two models meet: functions and graphs that emit messages of structured cooperation."""
