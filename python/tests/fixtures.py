"""Caches for tests: each test file has a rank of its own in this process."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import nkv
from nkv import mooncake

_numbers = itertools.count()


def settings() -> dict[str, object]:
    """Settings of a rank that meets no other job."""
    job = f"pytest-{os.getpid()}-{next(_numbers)}"
    return {"port": 0, "job": job, "http": "off", "prefault": False}


@pytest.fixture(scope="module")
def cache() -> Iterator[nkv.NanoKVCache]:
    """A rank alone."""
    with nkv.NanoKVCache(64 << 20, **settings()) as cache:
        yield cache


@pytest.fixture(scope="module")
def pair() -> Iterator[nkv.NanoKVCache]:
    """Rank 0 of two, which both are in this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        named = settings() | {"world_size": 2, "port": free.getsockname()[1]}
    with ThreadPoolExecutor(2) as threads:
        start = partial(nkv.NanoKVCache, 64 << 20, **named)
        started = [threads.submit(start, rank=rank) for rank in range(2)]
        caches = [each.result() for each in started]
    while len(caches[0]._view()["ranks"]) < 2:
        time.sleep(0.01)
    yield caches[0]
    for cache in reversed(caches):
        cache.close()


@pytest.fixture(scope="module")
def job() -> Iterator[tuple[nkv.NanoKVCache, str, str]]:
    """A rank alone, its job and its control address."""
    named = settings()
    with nkv.NanoKVCache(64 << 20, **named) as cache:
        yield cache, str(named["job"]), cache.control_address


@pytest.fixture(scope="module", params=["auto", "tcp"])
def handle(
    request: pytest.FixtureRequest, job: tuple[nkv.NanoKVCache, str, str]
) -> Iterator[nkv.NanoKVCache]:
    """A handle of a rank, by shared memory and by tcp."""
    _, name, address = job
    with nkv.connect(address, job=name, transport=request.param) as handle:
        yield handle


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test has."""
    return f"{request.node.nodeid}/{next(_numbers)}"


@pytest.fixture
def store(
    job: tuple[nkv.NanoKVCache, str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[mooncake.MooncakeDistributedStore]:
    """A store of Mooncake's names that is not set up."""
    cache, name, _ = job
    cache.remove_all()
    monkeypatch.setenv("NKV_JOB", name)
    store = mooncake.MooncakeDistributedStore()
    yield store
    store.close()
