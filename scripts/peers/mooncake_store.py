"""Mooncake Store from its wheel, as its users run it, in three places: `local` (the measuring
process holds the segment), `tcp` (another process holds it) and `dummy` (its client process holds
it and shares memory with the measuring one).

Segments are touched once before anything is timed, buffers are registered, and every key is removed
by force between sizes, because keys are leased for seconds after a read. The library may crash in
close(): processes that used it leave by os._exit.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys

from measure import GIB, HOST, MIB, SIZES, expect, free_port, measure_sizes, stop, wait_for_listener

SEGMENT_BYTES = 2 * GIB
LOCAL_BUFFER_BYTES = 256 * MIB
# Programs of the package that are started.
PROGRAMS = ("mooncake_master", "mooncake_client")
TOUCH_BYTES = 32 * MIB
# The allocator places nothing in the last part of a segment without evicting.
TOUCH_SHARE = 0.85


def program(name):
    import mooncake

    return os.path.join(os.path.dirname(mooncake.__file__), name)


def check_libraries(name):
    """Raises with what to install when the wheel's program lacks a system library."""
    linked = subprocess.run(
        ["ldd", program(name)], capture_output=True, text=True, check=False
    ).stdout
    lacks = sorted({line.split()[0] for line in linked.splitlines() if "=> not found" in line})
    if lacks:
        raise RuntimeError(
            f"{name} lacks {', '.join(lacks)}: install their packages (libibverbs1, ...)"
        )


@contextlib.contextmanager
def running(name, port, *flags):
    check_libraries(name)
    process = subprocess.Popen(
        [program(name), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_listener(process, socket.AF_INET, (HOST, port))
        yield process
    finally:
        stop(process)


@contextlib.contextmanager
def master():
    port = free_port()
    flags = [
        f"-rpc_address={HOST}",
        f"-rpc_port={port}",
        f"-metrics_host={HOST}",
        f"-metrics_port={free_port()}",
    ]
    with running("mooncake_master", port, *flags):
        yield f"{HOST}:{port}"


def connected(master_address, segment_bytes):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    rc = store.setup(
        HOST, "P2PHANDSHAKE", segment_bytes, LOCAL_BUFFER_BYTES, "tcp", "", master_address
    )
    expect(rc, 0, "setup")
    return store


def local():
    with master() as address:
        return measured(connected(address, SEGMENT_BYTES), own_buffer())


def start_holder(master_address):
    """A process that holds a segment for others."""
    return subprocess.Popen(
        [sys.executable, __file__, master_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_it_holds(holder):
    expect(holder.stdout.readline().strip(), "holding", "the process that holds the segment")


def tcp():
    with master() as address:
        holder = start_holder(address)
        try:
            wait_until_it_holds(holder)
            return measured(connected(address, 0), own_buffer())
        finally:
            stop(holder)


def dummy():
    from mooncake.store import MooncakeDistributedStore

    port = free_port()
    with master() as address:
        flags = [f"-host={HOST}", f"-port={port}", f"-global_segment_size={SEGMENT_BYTES // GIB}GB"]
        flags += [
            f"-local_buffer_size={LOCAL_BUFFER_BYTES // MIB}MB",
            f"-master_server_address={address}",
        ]
        flags += ["-metadata_server=P2PHANDSHAKE", "-protocol=tcp"]
        with running("mooncake_client", port, *flags):
            store = MooncakeDistributedStore()
            rc = store.setup_dummy(LOCAL_BUFFER_BYTES, LOCAL_BUFFER_BYTES, f"{HOST}:{port}")
            expect(rc, 0, "setup_dummy")
            # Here a buffer must come from the memory that both processes map.
            buffer = store.alloc_from_mem_pool(TOUCH_BYTES)
            if not buffer:
                raise RuntimeError("alloc_from_mem_pool gave nothing")
            return measured(store, buffer)


def own_buffer():
    page = 4096
    memory = ctypes.create_string_buffer(TOUCH_BYTES + page)
    own_buffer.memory = memory  # lives as long as the process: the store keeps its address
    return ctypes.addressof(memory) + -ctypes.addressof(memory) % page


def calls(store, buffer, size):
    """put, get and filled of a store with Mooncake's names, on a buffer of so many bytes."""
    assert max(SIZES) <= size
    ctypes.memset(buffer, 1, size)
    expect(store.register_buffer(buffer, size), 0, "register_buffer")

    def put(key, size):
        expect(store.put_from(key, buffer, size), 0, "put_from")

    def get(key, size):
        expect(store.get_into(key, buffer, size), size, "get_into")

    def filled(size, data):
        ctypes.memmove(buffer, data, size)
        return lambda: ctypes.string_at(buffer, size)

    return put, get, filled


def measured(store, buffer):
    put, get, filled = calls(store, buffer, TOUCH_BYTES)

    def clear():
        store.remove_all(True)

    for i in range(int(SEGMENT_BYTES * TOUCH_SHARE) // TOUCH_BYTES):
        put(f"touch/{i}", TOUCH_BYTES)
    clear()
    return measure_sizes(put, get, filled, clear)


def hold_segment(master_address):
    """Holds the segment for another process until that one closes our standard input."""
    store = connected(master_address, SEGMENT_BYTES)
    print("holding", flush=True)
    sys.stdin.read()
    del store
    os._exit(0)


if __name__ == "__main__":
    hold_segment(sys.argv[1])
