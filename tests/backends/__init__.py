"""The gang's backends, as parameters of tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from sparktrain import backends

_MISSING = backends.load("horovod").missing()
horovod = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
"""Marks what needs Horovod; `scripts/test` builds it."""
_NO_MPI = backends.load("mpi").missing() or (None if find_spec("mpi4py") else "mpi4py is not installed")
mpi = pytest.mark.skipif(_NO_MPI is not None, reason=str(_NO_MPI))
"""Marks what needs Open MPI and mpi4py; `scripts/test` installs them where it may."""

EACH_OTHER = (pytest.param("horovod", marks=horovod), pytest.param("mpi", marks=[horovod, mpi]))
"""Over MPI the estimators' ranks add up by Horovod as well."""
OTHERS = (EACH_OTHER[0], pytest.param("mpi", marks=[horovod, mpi, pytest.mark.slow]))
BACKENDS = ("native", *OTHERS)
