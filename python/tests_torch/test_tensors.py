"""Tensors of torch in and out of NanoKVCache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nkv

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def made(dtype: torch.dtype) -> torch.Tensor:
    """A tensor with values of all kinds."""
    return torch.randint(0, 100, (2, 3, 5)).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shape, type and bytes are equal."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shape_type_and_bytes_come_back(handle: nkv.NanoKVCache, key: str, dtype) -> None:
    value = made(dtype)
    handle.put(key, value)
    assert same(handle.get(key), value)
    assert same(handle.get_many([key])[0], value)
    into = torch.zeros_like(value)
    handle.get(key, dst=into)
    assert same(into, value)


def test_a_view_is_the_owners_memory(cache: nkv.NanoKVCache, key: str) -> None:
    value = made(torch.bfloat16)
    cache.put(key, value)
    view = cache.get_view(key)
    assert same(view, value)
    assert view.data_ptr() != cache.get(key).data_ptr()
    assert view.data_ptr() == cache.get_view(key).data_ptr()
    cache.remove(key)
    assert same(view, value)


def test_odd_tensors(handle: nkv.NanoKVCache, key: str) -> None:
    handle.put(key + "/empty", torch.zeros(0, 4))
    assert handle.get(key + "/empty").shape == (0, 4)
    handle.put(key + "/scalar", torch.tensor(3.5))
    assert handle.get(key + "/scalar").item() == 3.5
    handle.put(key + "/grad", torch.ones(3, requires_grad=True))
    assert handle.get(key + "/grad").sum() == 3
    with pytest.raises(nkv.InvalidArgument, match="contiguous"):
        handle.put(key, torch.zeros(4, 6).T)
    handle.put(key, made(torch.float32))
    for place in (torch.zeros(2, 3, 4), torch.zeros(2, 3, 5, dtype=torch.float64)):
        with pytest.raises(nkv.InvalidArgument):
            handle.get(key, dst=place)
    with pytest.raises(nkv.InvalidArgument):
        handle.put(key, torch.zeros(3, device="meta"))


def test_numpy_and_torch_read_what_the_other_put(handle: nkv.NanoKVCache, key: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    handle.put(key, array)
    assert torch.equal(handle.get(key, library="torch"), torch.from_numpy(array))
    handle.put(key + "/t", torch.from_numpy(array))
    assert np.array_equal(handle.get(key + "/t", library="numpy"), array)
