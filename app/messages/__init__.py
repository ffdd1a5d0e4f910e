"""Our own message format, stable across frameworks, and its stored form."""
