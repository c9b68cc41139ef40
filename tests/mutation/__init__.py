"""Tests that notice: faults put into the code on purpose, one at a time."""
