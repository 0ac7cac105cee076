"""Where fits keep what they write: a directory on a disk that all hosts see, or in an object store."""

from sparktrain.store.store import HDFSStore, LocalStore, Store

__all__ = ["HDFSStore", "LocalStore", "Store"]
