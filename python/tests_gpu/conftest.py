"""A rank with its payloads in GPU 0, one in shared memory, and handles of both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from device_arrays import use_gpu

import nkv

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def gpu() -> None:
    """The GPU is current, as in a program that has tensors there."""
    use_gpu()


@pytest.fixture(scope="module", params=["cuda", "dram"])
def rank(request: pytest.FixtureRequest) -> Iterator[nkv.NanoKVCache]:
    """A rank alone in this process."""
    settings = {
        "port": 0,
        "job": f"pytest-gpu-{os.getpid()}-{next(_numbers)}",
        "http": "off",
        "prefault": False,
        "memory": request.param,
        "gpu": 0,
    }
    with nkv.NanoKVCache(32 << 20, **settings) as cache:
        cache.memory_kind = request.param  # type: ignore[attr-defined]
        cache.job_name = settings["job"]  # type: ignore[attr-defined]
        yield cache


@pytest.fixture(scope="module", params=["own", "auto", "tcp"])
def cache(request: pytest.FixtureRequest, rank: nkv.NanoKVCache) -> Iterator[nkv.NanoKVCache]:
    """The rank's own handle, and handles that attach to it."""
    if request.param == "own":
        yield rank
        return
    job = rank.job_name  # type: ignore[attr-defined]
    with nkv.connect(rank.control_address, job=job, transport=request.param) as handle:
        yield handle


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test has."""
    return f"{request.node.nodeid}/{next(_numbers)}"
