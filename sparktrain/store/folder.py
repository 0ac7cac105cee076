"""A run's directory as a worker sees it: on a local file system itself, of any other a copy on the executor's disk."""

from __future__ import annotations

import os
import posixpath

from sparktrain.store.store import filesystem_of


class Folder:
    """A local directory that stands for one in a store.

    Parameters
    ----------
    url : str
        Of the directory; it need not exist.
    scratch : str
        A directory for the copy, where there has to be one.

    Attributes
    ----------
    path : str
        The local directory.
    """

    def __init__(self, url: str, scratch: str) -> None:
        self._filesystem, self._root = filesystem_of(url)
        self.is_local = "file" in self._filesystem.protocol
        self.path = self._root if self.is_local else os.path.join(scratch, "run")
        self._known: dict[str, tuple[int, int]] = {}

    def pull(self, name: str) -> None:
        """Fetch a file or directory of the run, if it has it."""
        source = posixpath.join(self._root, name)
        if self.is_local or not self._filesystem.exists(source):
            return
        for remote in self._filesystem.find(source):
            local = os.path.join(self.path, posixpath.relpath(remote, self._root))
            os.makedirs(os.path.dirname(local), exist_ok=True)
            self._filesystem.get_file(remote, local)
        self._known |= self._files()

    def push(self) -> None:
        """Bring what has changed here since the last time to the store, and take away there what is gone here."""
        if self.is_local:
            return
        files = self._files()
        for name in [name for name, stamp in files.items() if self._known.get(name) != stamp]:
            target = posixpath.join(self._root, name)
            self._filesystem.makedirs(posixpath.dirname(target), exist_ok=True)
            self._filesystem.put_file(os.path.join(self.path, name), target)
        for name in self._known.keys() - files.keys():
            self._filesystem.rm_file(posixpath.join(self._root, name))
        self._known = files

    def _files(self) -> dict[str, tuple[int, int]]:
        """Size and time of change of each file here."""
        found = {}
        for directory, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(directory, name)
                stat = os.stat(path)
                found[os.path.relpath(path, self.path)] = (stat.st_size, stat.st_mtime_ns)
        return found
