"""The systems we are measured beside, fetched at run time in pinned versions."""
