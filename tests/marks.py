"""Marks of tests that need what may not be there; with CI set a skipped test is a failure."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not built: make horovod")
