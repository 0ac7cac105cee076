"""`Store`: a root directory, by URL, with one directory a run."""

from __future__ import annotations

import datetime
import os
import re
import uuid

import fsspec
from fsspec.core import split_protocol, url_to_fs

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class Store:
    """A root directory on any of fsspec's file systems.

    Parameters
    ----------
    prefix_path : str or path
        ``/shared/runs``, ``s3://bucket/runs``, ``gs://…``, ``abfs://…``, ``hdfs://…``, ``memory://…``, or Databricks'
        ``dbfs:/runs``. A path without a scheme is a local one, from the driver's working directory.

    Raises
    ------
    ValueError
        For a scheme that fsspec does not know.
    ImportError
        Where the package that its scheme needs is not installed here.

    Examples
    --------
    >>> store = Store.create("s3://bucket/runs")
    >>> KerasEstimator(store=store, ...)
    """

    def __init__(self, prefix_path: str | os.PathLike[str]) -> None:
        given = os.fspath(prefix_path)
        if given.startswith("dbfs:/"):
            given = "/dbfs/" + given.removeprefix("dbfs:/").lstrip("/")  # where Databricks mounts it on every host
        protocol, path = split_protocol(given)
        if protocol in (None, "file", "local"):
            self.url = f"file://{os.path.abspath(path)}"
        else:
            fsspec.get_filesystem_class(protocol)  # there is one, and its package; nothing is connected to yet
            self.url = given.rstrip("/")

    @staticmethod
    def create(prefix_path: str | os.PathLike[str]) -> Store:
        """A store at `prefix_path`, as Horovod's users write it."""
        return Store(prefix_path)

    def get_run_path(self, run_id: str) -> str:
        """The URL of a run's directory."""
        return f"{self.url}/{check_run_id(run_id)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class LocalStore(Store):
    """A store on a disk, which all hosts must see where there are several.

    Raises
    ------
    ValueError
        For a path that is not local.
    """

    def __init__(self, prefix_path: str | os.PathLike[str]) -> None:
        super().__init__(prefix_path)
        if not self.url.startswith("file:"):
            raise ValueError(f"LocalStore takes a local path, got {self.url}; Store.create takes any")


class HDFSStore(Store):
    """A store on HDFS: ``hdfs://namenode:port/path``, or ``/path`` on the default one."""

    def __init__(self, prefix_path: str | os.PathLike[str]) -> None:
        given = os.fspath(prefix_path)
        super().__init__(given if given.startswith("hdfs:") else f"hdfs://{given}")


def new_run_id() -> str:
    """A name that sorts by time."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def check_run_id(run_id: str) -> str:
    """The run's name, which becomes that of a directory.

    Raises
    ------
    ValueError
        For anything else than letters, digits, ``.``, ``_`` and ``-``.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"a name of letters, digits, '.', '_' and '-', that does not start with '.' or '-': {run_id!r}"
        )
    return run_id


def filesystem_of(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL, and the path there."""
    filesystem, path = url_to_fs(url)
    return filesystem, str(path)
