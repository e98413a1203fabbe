"""nkv from Python, by Mooncake's names: the same calls on the same buffers as `mooncake_store.py`
makes, against a node in a process of its own, by shared memory or tcp.

`scripts/bench` builds the module and the node, and says where they are: NKV_BINARIES.
"""

import ctypes
import mmap
import os
import shutil
import statistics
import sys
import tempfile

import mooncake_store
import nodes
from measure import KIB, MIB, content, expect, measure_sizes, timed_us

# As `nkv-load` measures its own (`bin/nkv-load/budgets/batches.rs`).
BATCH_OBJECTS = 128
BATCH_BYTES = 256 * KIB
BATCHES = 24
BUFFER_BYTES = 32 * MIB
HUGE_PAGE = 2 * MIB
LOG_BYTES = 4 << 30
NODE = ["--heap-bytes", "6GiB", "--log-bytes", str(LOG_BYTES)]


def shm():
    return measured("auto")


def tcp():
    return measured("tcp")


def measured(transport):
    binaries = os.environ["NKV_BINARIES"]
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, package(binaries, folder))
        with nodes.one_rank(binaries, folder, NODE) as address:
            return of_node(address, transport)


def package(binaries, folder):
    """The package as pip would install it; returns the folder for `sys.path`."""
    here = os.path.dirname(os.path.abspath(__file__))
    into = os.path.join(folder, "nkv")
    shutil.copytree(os.path.join(here, "../../python/nkv"), into)
    shutil.copy(os.path.join(binaries, "lib_nkv.so"), os.path.join(into, "_nkv.abi3.so"))
    return folder


def of_node(address, transport):
    os.environ["NKV_JOB"] = nodes.JOB
    if transport != "auto":
        os.environ["NKV_TRANSPORT"] = transport
    from nkv import mooncake

    store = mooncake.MooncakeDistributedStore()
    rc = store.setup("127.0.0.1", "", 0, 0, "tcp", "", address.removeprefix("tcp://"))
    expect(rc, 0, "setup")
    # In huge pages, as the buffers of `nkv-load`.
    memory = mmap.mmap(-1, BUFFER_BYTES + HUGE_PAGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    buffer = start + -start % HUGE_PAGE
    put, get, filled = mooncake_store.calls(store, buffer, BUFFER_BYTES)
    table = measure_sizes(put, get, filled, store.remove_all)
    table[str(BATCH_BYTES)].update(batches(store, buffer))
    store.close()
    return table


def batches(store, buffer):
    """Medians {put_batch_us, get_batch_us} of one object of a batch."""
    places = [buffer + i * BATCH_BYTES for i in range(BATCH_OBJECTS)]
    sizes = [BATCH_BYTES] * BATCH_OBJECTS
    keys = [[f"batches/{b}/{i}" for i in range(BATCH_OBJECTS)] for b in range(BATCHES)]
    data = content(BUFFER_BYTES)
    ctypes.memmove(buffer, data, BUFFER_BYTES)
    answers = []

    def put(names):
        answers.append(store.batch_put_from(names, places, sizes))

    def get(names):
        answers.append(store.batch_get_into(names, places, sizes))

    # Once around the log, as the rows before the batches of `nkv-load` have gone: this process
    # has mapped every page of it then.
    for lap in range(LOG_BYTES // BUFFER_BYTES):
        put([f"around/{lap}/{i}" for i in range(BATCH_OBJECTS)])
    expect(answers, [[0] * BATCH_OBJECTS] * len(answers), "batch_put_from")
    store.remove_all()
    answers.clear()
    put_us = [timed_us(lambda names=names: put(names)) for names in keys]
    expect(answers, [[0] * BATCH_OBJECTS] * BATCHES, "batch_put_from")
    answers.clear()
    ctypes.memset(buffer, 0, BUFFER_BYTES)
    get_us = [timed_us(lambda names=names: get(names)) for names in keys]
    expect(answers, [sizes] * BATCHES, "batch_get_into")
    if ctypes.string_at(buffer, BUFFER_BYTES) != data:
        raise RuntimeError("a batch came back changed")
    store.remove_all()
    return {
        "put_batch_us": round(statistics.median(put_us[1:]) / BATCH_OBJECTS, 2),
        "get_batch_us": round(statistics.median(get_us) / BATCH_OBJECTS, 2),
    }
