"""Row images that outlive their host: the stores of a source as objects and rows of its shared log.

What is shared of a store is its last checkpoint: its manifest (a note of the shared log) and the
runs that it names (objects). The change log keeps everything above that checkpoint, so another host
makes the same store of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from changefeed.core.clock import Timestamp
from changefeed.core.log_manifest import LogChange
from changefeed.images.states import MANIFEST
from changefeed.images.store import ImageStore
from changefeed.log.objects import ObjectStore
from changefeed.log.shared import LogRegister

#: Names of objects and notes that belong to row images begin with it.
PREFIX: Final = "images/"

#: The file that says of which lease the stores in a folder are.
TOKEN_NAME: Final = "TOKEN"


class SharedImages:
    """The shared stores of one source. One thread shares; :meth:`fetch` comes before that."""

    def __init__(
        self, register: LogRegister, store: ObjectStore, root: Path, folder: str, token: int
    ) -> None:
        """
        Args:
            root: the folder of the source's stores on this host.
            folder: of the source's objects in the store.
            token: of the lease that this host has.
        """
        self._token = token
        self._register = register
        self._objects = store
        self._root = root
        self._folder = folder
        #: Size and object of each registered run, by its name in the register.
        self._runs: dict[str, tuple[int, str]] = {}
        self._manifests: dict[str, bytes] = {}

    def fetch(self) -> None:
        """Make the stores of this host those that are registered, unless they are already those of
        this lease, which may be ahead, or of a log that was on this host alone until now.

        Raises:
            ChangefeedError: CF3007 the store, CF6001 the state cannot be reached.
        """
        objects, notes = self._register.manifest().objects, self._register.notes()
        self._runs = {n: found for n, found in objects.items() if n.startswith(PREFIX)}
        self._manifests = {n: body for n, body in notes.items() if n.startswith(PREFIX)}
        mark = self._root / TOKEN_NAME
        if mark.exists() and mark.read_text() == str(self._token):
            return
        if self._root.exists() and (mark.exists() or self._manifests):
            shutil.rmtree(self._root)
        for name, (size, found) in self._runs.items():
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._objects.fetch(found, path, size)
        for name, body in self._manifests.items():
            # The last: a folder without a manifest is no store.
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(body)
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.write_text(str(self._token))

    def _path(self, name: str) -> Path:
        return self._root / name.removeprefix(PREFIX)

    def _name(self, folder: Path, file: str) -> str:
        return f"{PREFIX}{folder.name}/{file}"

    def share(self, store: ImageStore) -> Timestamp:
        """Register the last checkpoint of a store; returns its timestamp.

        Raises:
            ChangefeedError: CF3007 the store of objects, CF6001 the state cannot be reached; CF6003
                another node has the source.
        """
        with store.held() as held:
            manifest = self._name(store.folder, MANIFEST)
            if self._manifests.get(manifest) == held.manifest:
                return held.at
            named = {self._name(store.folder, path.name): path for path in held.runs}
            fresh = {
                name: (path.stat().st_size, self._objects.put_new(f"{self._folder}/{name}", path))
                for name, path in named.items()
                if name not in self._runs
            }
        prefix = self._name(store.folder, "")
        gone = [name for name in self._runs if name.startswith(prefix) and name not in named]
        self._register.register(
            LogChange(objects=fresh, forget_objects=gone, notes={manifest: held.manifest})
        )
        self._manifests[manifest] = held.manifest
        self._runs |= fresh
        self._objects.discard([self._runs.pop(name)[1] for name in gone])
        return held.at

    def forget(self, folder: Path) -> None:
        """Forget a store that is given up or no longer wanted; raises as :meth:`share`."""
        prefix = self._name(folder, "")
        runs = [name for name in self._runs if name.startswith(prefix)]
        notes = [name for name in self._manifests if name.startswith(prefix)]
        if runs or notes:
            self._register.register(LogChange(forget_objects=runs, forget_notes=notes))
            for name in notes:
                del self._manifests[name]
            self._objects.discard([self._runs.pop(name)[1] for name in runs])

    @property
    def folders(self) -> set[str]:
        """The folders of the stores that are registered."""
        return {name.removeprefix(PREFIX).partition("/")[0] for name in self._manifests}
