"""Where files go: a directory, an object store, a server that takes PUT."""
