"""Measurements: against limits, and against peers side by side on one machine."""
