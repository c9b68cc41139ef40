"""Source against target: which rows of a feed's tables differ, and how to be sure of it."""
