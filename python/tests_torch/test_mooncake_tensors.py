"""Mooncake's calls of tensors with torch: recorded answers, and what torch alone can show."""

from __future__ import annotations

import ctypes

import mooncake_parts
import pytest
import torch
from test_mooncake_parts import Job, Store, attached, compare

from nkv import mooncake


def test_tensors_are_stored_as_by_mooncake(store: Store, job: Job) -> None:
    master, tensor = job[2].removeprefix("tcp://"), mooncake_parts.torch_tensor
    compare(mooncake_parts.tensor_calls(mooncake, store, master, tensor), "tensors")


def test_tensors_are_read_as_by_mooncake(store: Store, job: Job) -> None:
    master, tensor = job[2].removeprefix("tcp://"), mooncake_parts.torch_tensor
    compare(mooncake_parts.read_calls(mooncake, store, master, tensor), "reads")


def test_tensors_of_any_layout_keep_their_values(store: Store, job: Job) -> None:
    attached(store, job)
    base = torch.randn(6, 8, 10)
    for number, tensor in enumerate(
        (
            base,
            base.transpose(0, 2),
            base[::2, 1:, ::3],
            base.expand(2, 6, 8, 10),
            base.requires_grad_(),
            torch.randn(2, 2, dtype=torch.complex64).conj().imag,
        )
    ):
        assert store.put_tensor(f"layout/{number}", tensor) == 0
        assert torch.equal(store.get_tensor(f"layout/{number}"), tensor.detach())
    for wrong in (base.detach().to_sparse(), torch.zeros(2, dtype=torch.complex64), "tensor"):
        assert store.put_tensor("wrong", wrong) == -600
    assert store.put_tensor("meta", torch.zeros(2, device="meta")) == -600


def test_a_tensor_that_was_read_can_be_written_and_outlives_the_store(
    store: Store, job: Job
) -> None:
    attached(store, job)
    value = torch.arange(1000.0)
    assert store.put_tensor("own", value) == 0
    found = store.get_tensor("own")
    found += 1
    assert torch.equal(store.get_tensor("own"), value)
    assert store.close() == 0
    assert torch.equal(found, value + 1)


def test_a_tensor_lies_in_the_buffer_that_it_is_read_into(store: Store, job: Job) -> None:
    attached(store, job)
    value = torch.arange(12).reshape(3, 4)
    assert store.put_tensor_with_tp("cut", value, 0, 2, 1) == 0
    memory = (ctypes.c_ubyte * 1000)()
    requests = mooncake_parts.Requests(mooncake)
    target = requests.target("full", requests.tp(0, 2, 1))
    at = ctypes.addressof(memory)
    found = store.get_tensor_with_parallelism_into("cut", at, 1000, target)
    assert torch.equal(found, value)
    assert at <= found.data_ptr() < at + 1000
    assert store.put_tensor_from("copy", at, 304 + 96) == 0
    assert torch.equal(store.get_tensor("copy"), value)


def test_serialized_tensors(store: Store, job: Job) -> None:
    attached(store, job)
    value = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    header, address, size, _ = mooncake._serialize_tensor(value)
    assert len(header) == mooncake._tensor_metadata_size()
    whole = header + ctypes.string_at(address, size)
    assert torch.equal(mooncake._deserialize_tensor(whole), value)
    assert store.put("serialized", whole) == 0
    assert torch.equal(store.get_tensor("serialized"), value)
    for wrong in (b"", whole[:-1], whole + b"x", b"x" * 400):
        with pytest.raises(ValueError):
            mooncake._deserialize_tensor(wrong)
