"""How every peer is measured: which sizes, how many operations, which figure. It starts
nothing and is the same for every peer.

One closed-loop client, one request in flight. Keys are unique, buffers are reused. A round puts as
many objects as may be alive at once, reads each, and removes all; the first round is not recorded.
`nkv-load --bench` does the same: what is alive at once decides which cache the bytes are in, so the
figures below must be those of its source, or the results are not comparable.
"""

import random
import socket
import statistics
import subprocess
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB]
OPERATIONS = {
    4 * KIB: 4000,
    64 * KIB: 2000,
    256 * KIB: 1000,
    1 * MIB: 400,
    4 * MIB: 100,
    16 * MIB: 32,
}
LIVE_BYTES = 64 * MIB
LIVE_OBJECTS = 500
SIZE_S = 1.7
HOST = "127.0.0.1"
START_S = 30
STOP_S = 10


def content(size):
    """Bytes that no compression or zero page helps with, the same in every run."""
    return random.Random(size).randbytes(size)


def live_objects(size):
    """How many objects of a size are alive at once."""
    return max(1, min(LIVE_BYTES // size, LIVE_OBJECTS))


def timed_us(operation):
    start = time.perf_counter_ns()
    operation()
    return (time.perf_counter_ns() - start) / 1000


def rounds(size, put, get, clear):
    """Medians {put_p50_us, get_p50_us} of rounds of put(number, place), get(number, place) and
    clear(): the number is new in every round, the place goes from 0 to the objects alive at
    once."""
    live = live_objects(size)
    puts, gets = [], []
    deadline = time.monotonic() + SIZE_S
    number = 0
    while number < 2 * live or (len(gets) < OPERATIONS[size] and time.monotonic() < deadline):
        put_us = [timed_us(lambda: put(number + place, place)) for place in range(live)]
        get_us = [timed_us(lambda: get(number + place, place)) for place in range(live)]
        clear()
        if number > 0:
            puts += put_us
            gets += get_us
        number += live
    return {
        "put_p50_us": round(statistics.median(puts), 2),
        "get_p50_us": round(statistics.median(gets), 2),
    }


def measure_sizes(put, get, filled, clear):
    """{size: {put_p50_us, get_p50_us}} of a store.

    put(key, size) and get(key, size) move bytes from and into the store's own buffer and raise on
    failure; filled(size, data) sets that buffer's first bytes and returns a function that reads
    them back; clear() empties the store.
    """
    return {str(size): measure_size(size, put, get, filled, clear) for size in SIZES}


def measure_size(size, put, get, filled, clear):
    data = content(size)
    read_back = filled(size, data)
    put(f"compared/{size}", size)
    filled(size, bytes(size))
    get(f"compared/{size}", size)
    if read_back() != data:
        raise RuntimeError(f"{size} bytes came back changed")
    clear()

    def key(number):
        return f"side-by-side/{size}/{number}"

    return rounds(size, lambda n, _: put(key(n), size), lambda n, _: get(key(n), size), clear)


def expect(got, wanted, what):
    if got != wanted:
        raise RuntimeError(f"{what} returned {got}, expected {wanted}")


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def wait_for_listener(process, family, address):
    """Returns once `address` accepts; raises when the process ends first or START_S pass."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args[0]} ended with {process.returncode} before it listened"
            )
        try:
            with socket.socket(family) as probe:
                probe.connect(address)
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args[0]} did not listen on {address} within {START_S} s")


def stop(process):
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
