"""Attributes that stand in for those of Keras objects while a gang trains them."""

from __future__ import annotations

import contextlib
from typing import Any


class Overrides(contextlib.ExitStack):
    """What was put over objects, until `close` takes it away again, the last first."""

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Give `owner` an attribute that Keras does not track."""
        before = vars(owner).get(name)
        object.__setattr__(owner, name, value)
        if before is None:
            self.callback(object.__delattr__, owner, name)
        else:
            self.callback(object.__setattr__, owner, name, before)
