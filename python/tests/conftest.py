"""The fixtures of all tests."""

from fixtures import cache, handle, job, key, pair, settings, store  # noqa: F401
