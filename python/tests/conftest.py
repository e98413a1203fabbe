"""The fixtures of all tests."""

from fixtures import cache, handle, job, key, store  # noqa: F401
