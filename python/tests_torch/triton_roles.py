"""What the processes of test_triton.py do, with TRITON_INTERPRET=1: kernels run on tensors of the
CPU, over memory that two processes map.

    triton_roles.py produce         a rank: for each line read, a kernel writes an object
    triton_roles.py read            a handle: for each object described, a kernel waits for it
    triton_roles.py log             one process: kernels put into a log made of tensors
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu/tests/ptx/triton"))

import kernels

import nkv
from nkv.triton import KV_LOG_FULL, KV_LOG_STORED, KV_READABLE

PAGES, PAGE_VALUES = 3, 2304
TILE = 512
SPINS = 1 << 40
KEY_CHECK_OFF = 32
READY, DEAD = 2, 3


def say(**what: Any) -> None:
    """Tells the test something."""
    print(json.dumps(what), flush=True)


def heard() -> dict[str, Any] | None:
    """What the test says next; None at the end."""
    line = sys.stdin.readline()
    said: dict[str, Any] | None = json.loads(line) if line else None
    return said


def value(key: str) -> torch.Tensor:
    """The bytes of a key's object."""
    torch.manual_seed(int.from_bytes(key.encode(), "big") % 1000)
    return torch.randint(0, 256, (PAGES * PAGE_VALUES * 4,), dtype=torch.uint8)


def produce() -> None:
    """One key is written by a grid to addresses, the next by one program to offsets."""
    job = f"triton-{os.getpid()}"
    plans = []
    with nkv.NanoKVCache(
        64 << 20, job=job, port=0, http="off", prefault=False, page_bytes=PAGE_VALUES * 4
    ) as cache:
        say(address=cache.control_address, job=job)
        while said := heard():
            key, source = said["key"], value(said["key"])
            if said["do"] == "open":
                plan = cache.open_for_write(key, len(source))
                plans.append(plan)
                say(**{name: getattr(plan, name) for name in DESCRIBED})
                continue
            plan, found = plans[-1], torch.full((1,), -1, dtype=torch.int64)
            if said["do"] == "grid":
                header = cache.device_ptr(plan.dst_rank, plan.header_off)
                payload = cache.device_ptr(plan.dst_rank, plan.payload_base)
                counter = torch.zeros(1, dtype=torch.int32)
                kernels.push_pages[(plan.n_pages,)](
                    source.view(torch.float32),
                    PAGE_VALUES,
                    header,
                    payload,
                    plan.page_bytes,
                    plan.epoch,
                    counter,
                    found,
                )
                assert int(counter) == 0
            else:
                kernels.push_object[(1,)](
                    source.view(torch.float16),
                    len(source) // (2 * TILE),
                    plan.header_off,
                    plan.payload_base,
                    2 * TILE,
                    plan.dst_rank,
                    cache.heap_bases_tensor,
                    found,
                    TILE=TILE,
                )
            say(published=int(found))


DESCRIBED = ["dst_rank", "header_off", "epoch", "key_hash", "payload_base", "bytes_total"]


def read() -> None:
    """Each object is waited for by a kernel that was told its place alone."""
    where = heard()
    assert where is not None
    with nkv.connect(where["address"], job=where["job"]) as handle:
        # It maps a rank's memory once it has used it.
        handle.put("a value", b"of the reader")
        while of := heard():
            control = handle.device_ptr(of["dst_rank"], of["header_off"])
            check = ctypes.c_uint64.from_address(control + KEY_CHECK_OFF).value
            target = torch.zeros(of["bytes_total"], dtype=torch.uint8)
            result = torch.zeros(1, dtype=torch.int64)
            say(waits=True)
            kernels.wait_read[(2,)](
                of["header_off"],
                of["epoch"],
                of["key_hash"],
                check if of.get("right", True) else check ^ 1,
                of["payload_base"],
                of["bytes_total"],
                of.get("spins", SPINS),
                of["payload_base"],
                target,
                of["dst_rank"],
                handle.heap_bases_tensor,
                result,
            )
            equal = torch.equal(target, value(of["key"]))
            say(result=int(result), readable=int(result) == KV_READABLE.value, equal=equal)


def log() -> None:
    """Claims that fit, one that crosses the end, one without room, one that waits in vain."""
    unit, units = 4096, 8
    log_bytes, offset = unit * units, 1 << 20
    payload = torch.zeros(log_bytes + 16, dtype=torch.uint8)
    start = payload.data_ptr() + -payload.data_ptr() % 16
    headers = torch.zeros(units * 8, dtype=torch.int64)
    control = torch.tensor([log_bytes, 0], dtype=torch.int64)
    sizes = [5000, 5000, 5000, 5000, 9000]
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]

    def put(numbers: list[int], spins: int = 2) -> list[list[int]]:
        rows = [
            [
                sources[i].data_ptr(),
                sizes[i],
                -sizes[i] % unit + sizes[i],
                i + 1,
                i + 100,
                2 | 4096 << 32,
            ]
            for i in numbers
        ]
        results = torch.zeros(len(rows), 2, dtype=torch.uint64)
        kernels.log_put[(2,)](
            torch.tensor(rows, dtype=torch.uint64),
            len(rows),
            control.data_ptr() + 8,
            control.data_ptr(),
            headers.data_ptr(),
            start,
            offset,
            log_bytes,
            spins,
            results,
        )
        return [[int(position), int(status)] for position, status in results]

    stored, full = KV_LOG_STORED.value, KV_LOG_FULL.value
    assert sorted(put([0, 1, 2])) == [[i * 8192, stored] for i in range(3)]
    for slot in range(0, 6, 2):
        row = headers[slot * 8 : slot * 8 + 8].tolist()
        key = row[0] - 1
        at = slot * unit
        pages = 2 | 4096 << 32
        assert row == [key + 1, pages, offset + at, 5000, key + 100, 1 << 32 | READY, 0, 0]
        held = payload[start - payload.data_ptr() + at :][:5000]
        assert torch.equal(held, sources[key])
    # Three units do not fit before the end: a skip, and no room behind it yet.
    control[0] += 2 * unit
    assert put([4]) == [[6 * unit, full]]
    assert headers[48:56].tolist() == [0, 0, offset + 6 * unit, 3 * unit, 0, 1 << 32 | DEAD, 0, 0]
    assert int(control[1]) == 9 * unit
    # The next lap.
    control[0] += 8 * unit
    assert put([4]) == [[9 * unit, stored]]
    assert headers[8:14].tolist() == [5, pages, offset + unit, 9000, 104, 2 << 32 | READY]
    held = payload[start - payload.data_ptr() + unit :][:9000]
    assert torch.equal(held, sources[4])
    say(done=True)


if __name__ == "__main__":
    {"produce": produce, "read": read, "log": log}[sys.argv[1]]()
