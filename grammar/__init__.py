"""The language: grammar files, syntax nodes, parser, printer, splitter, completion.

Imports lark and the standard library only.
"""
