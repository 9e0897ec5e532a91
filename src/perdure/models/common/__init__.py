"""The parts that the hosts of all models share. They run, count, fence and interrupt steps."""
