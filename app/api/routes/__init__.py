"""One file for each kind of thing."""
