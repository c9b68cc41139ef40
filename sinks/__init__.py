"""Sinks: one package or module a target, behind one protocol and one registry."""
