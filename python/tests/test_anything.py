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
from nkv import _nkv, mooncake
from nkv.mooncake import tensor_bytes

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
#: Native calls take addresses from nkv.cache alone: tuples of two integers are left out.
NATIVE = sorted(
    name
    for name in dir(_nkv.Cache)
    if not name.startswith("_")
    and name not in {"close", "connect", "start", "wait_ready"} | LEFT_OUT
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


#: Mooncake's calls take addresses as they are: those get no number that could be one.
NO_ADDRESS = st.recursive(
    st.one_of(
        st.none(), st.floats(), st.text(max_size=40), st.integers(max_value=0), st.just(object())
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
MOONCAKE = sorted(
    name
    for name in dir(mooncake.MooncakeDistributedStore)
    if not name.startswith("_")
    # Calls that end the test, and one that writes files.
    and name not in {"close", "tearDownAll", "setup", "setup_dummy", "save_tensor_to_safetensor"}
)


@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(MOONCAKE), data=st.data())
def test_mooncakes_calls(
    job: tuple[nkv.NanoKVCache, str, str],
    store: mooncake.MooncakeDistributedStore,
    name: str,
    data: st.DataObject,
) -> None:
    if store._c is None:
        assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    method = getattr(store, name)
    addresses = any("ptr" in parameter for parameter in inspect.signature(method).parameters)
    values = NO_ADDRESS if addresses else ANYTHING
    _call(method, data.draw(st.lists(values, max_size=6)))


@given(data=st.binary(max_size=400), at=st.integers(0, 303), total=st.integers(0, 500))
def test_any_bytes_are_a_tensors_header_or_none(data: bytes, at: int, total: int) -> None:
    good = tensor_bytes.Header(6, (4, 6), (2, 6), (tensor_bytes.Axis("tp", 1, 2, 0, 0),)).packed()
    changed = good[:at] + data + good[at + len(data) :]
    for header in (data, changed):
        found = tensor_bytes.parse(header, total)
        assert found is None or found.data_bytes + tensor_bytes.HEADER_BYTES == total
        tensor_bytes.parse_manifest(header)
    assert tensor_bytes.parse(good, 304 + 48) is not None


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
