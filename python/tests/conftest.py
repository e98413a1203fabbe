"""The fixtures of all tests."""

from fixtures import cache, handle, job, key, settings, store  # noqa: F401
