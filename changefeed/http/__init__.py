"""The HTTP API of a node, with its page, metrics and probes.

::

    server.py      a thread of uvicorn on one address
    application.py Starlette's routes and who may ask
    statements.py  POST /v1/statements: any statement
    events.py      answers as server-sent events: lists as they change, rows of a feed
    resources.py   one row for each path that shows or steers feeds
    openapi.py     /v1/openapi.json, made of those rows
    forms.py       results and errors as JSON
    answers.py     the same read back, for clients
    client.py      a node elsewhere that executes statements: what the shell uses with --url

Everything is a statement that :class:`changefeed.api.Interpreter` executes: nothing can be done or
seen here that the shell could not, and what the shell redacts is redacted.
"""
