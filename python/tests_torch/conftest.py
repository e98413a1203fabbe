"""The fixtures of python/tests, for tests that need torch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fixtures import cache, handle, job, key, store  # noqa: F401
