"""The files of the console, which have nothing of the state: a browser reads them before a login.

They are package data: plain modules and styles, served as they are. What they show comes from
``/v1``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_KINDS = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


@cache
def console_files() -> dict[str, bytes]:
    """Name -> content; a file of another kind is not served."""
    folder = files("changefeed.http").joinpath("console")
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _KINDS
    }


def file_routes() -> list[Route]:
    """A route for each file. Nothing of a request becomes a path."""
    return [_route(f"/console/{name}", name) for name in sorted(console_files())]


def index_route() -> Route:
    """The console's page."""
    return _route("/", "index.html")


def _route(path: str, name: str) -> Route:
    async def answer(request: Request) -> Response:
        return Response(console_files()[name], media_type=_KINDS[name.rpartition(".")[2]])

    return Route(path, answer)
