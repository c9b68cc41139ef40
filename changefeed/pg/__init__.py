"""A node's feeds over PostgreSQL's protocol: statements as the shell takes them, and the listings
as tables that SELECT reads.

``server`` listens, ``connection`` speaks the protocol to one client, ``session`` carries out its
statements, ``views`` makes tables of listings. What a client may is decided where HTTP decides it,
by the interpreter. No module here imports a source's client.
"""
