"""The gang's backends, as parameters of tests."""

from __future__ import annotations

import pytest

from sparktrain import backends

_MISSING = backends.load("horovod").missing()
horovod = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
"""Marks what needs Horovod; `scripts/test` builds it."""

BACKENDS = ("native", pytest.param("horovod", marks=horovod))
