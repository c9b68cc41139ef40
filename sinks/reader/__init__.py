"""The place of a reader that takes its changes from the change log."""
