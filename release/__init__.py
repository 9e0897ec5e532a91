"""What is done before a release: the list of what is shipped with it, and a look for known holes in that."""
