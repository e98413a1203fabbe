"""Any argument of any type: a result or an exception, never a crash, and no memory is lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nkv
from nkv import _nkv

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=200),
    st.binary(max_size=40).map(bytearray),
    st.binary(max_size=40).map(memoryview),
    st.integers(0, 30).map(np.arange),
    st.just(object()),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=8,
)
#: Calls that end or outlast the test.
LEFT_OUT = {
    "close",
    "connect",
    "get_when_ready",
    "aget_when_ready",
    "start_get_when_ready",
    "evict_until_below",
    "control_address",
}
CALLS = sorted(
    name for name in dir(nkv.NanoKVCache) if not name.startswith("_") and name not in LEFT_OUT
)
#: Native calls take addresses from nkv alone: tuples of two integers are left out, and calls whose
#: integers are addresses.
NATIVE = sorted(
    name
    for name in dir(_nkv.Cache)
    if not name.startswith("_")
    and name not in {"close", "connect", "start", "wait_ready"} | LEFT_OUT
    and not name.endswith("_at")
)


def _call(method: Any, arguments: list[Any]) -> None:
    # What a program may get: an exception, but no panic of the native part, which is no Exception.
    with contextlib.suppress(Exception):
        result = method(*arguments)
        if inspect.iscoroutine(result):
            asyncio.run(asyncio.wait_for(result, 5))
        elif hasattr(result, "__next__"):
            next(result, None)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(CALLS), arguments=st.lists(ANYTHING, max_size=4))
def test_public_calls(cache: nkv.NanoKVCache, name: str, arguments: list[Any]) -> None:
    method = getattr(type(cache), name)
    if callable(method):
        _call(method.__get__(cache), arguments)


def _names_no_address(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        pair = isinstance(value, tuple) and all(type(item) in (int, bool) for item in value)
        return not pair and all(_names_no_address(item) for item in value)
    return True


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(NATIVE),
    arguments=st.lists(ANYTHING.filter(_names_no_address), max_size=5),
)
def test_native_calls(cache: nkv.NanoKVCache, name: str, arguments: list[Any]) -> None:
    method = getattr(cache._c, name)
    if callable(method):
        _call(method, arguments)


def _private_kib() -> int:
    """Private memory of this process: without the segment, whose pages are touched one by one."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def test_no_memory_is_lost_over_many_calls(cache: nkv.NanoKVCache, key: str) -> None:
    value, into = np.arange(1000), np.arange(1000)

    def calls(n: int) -> None:
        for i in range(n):
            cache.put(f"{key}/{i % 50}", value)
            cache.get(f"{key}/{i % 50}", dst=into)
            cache.get(f"{key}/{i % 50}")
            with contextlib.suppress(nkv.NotFound):
                cache.get(f"{key}/absent")
            cache.get_view(f"{key}/{i % 50}")

    calls(2_000)
    before = _private_kib()
    calls(20_000)
    # A lost value in each of these calls would be 160 MiB, an object of 100 bytes 10 MiB.
    assert _private_kib() - before < 8 << 10
