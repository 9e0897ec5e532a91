"""What the hosts of all models share: how steps are carried out, counted, fenced and interrupted."""
