"""Files in a directory: sorted by name they are in time order."""
