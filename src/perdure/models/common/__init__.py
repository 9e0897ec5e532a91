"""The parts that the hosts of all models share: how steps are run, counted, fenced and interrupted."""
