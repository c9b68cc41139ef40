"""A result as text, in the format the user chose. Writes data only; standard output is its place.

``table`` is for people, ``vertical`` for wide rows, ``csv json jsonl markdown`` for programs.
"""
