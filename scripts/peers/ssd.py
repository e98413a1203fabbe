"""Objects that outgrow memory: nkv and the SSD backends of Mooncake Store, on one disk, in turns.

The same job by the same calls: 1.5 GiB in objects of 1 MiB is put into 512 MiB of memory with a
disk below. Once the disk is quiet, and the page cache is dropped, 600 objects that only the disk
has are read one by one, and others in batches of 16; every byte is compared. A put that finds no
room is tried again until it is taken, and counts from its first try.

`scripts/ssd-peers` builds, and provides the packages.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import mooncake_store
import nkv_python
import nodes
from measure import GIB, HOST, MIB, content, expect, free_port

OBJECTS = 1536
MEMORY_BYTES = 512 * MIB
DISK_BYTES = 8 * GIB
READS = 600
BATCH = 16
BUFFER_BYTES = 32 * MIB
RETRY_S = 0.005
PUT_LIMIT_S = 20
QUIET_LIMIT_S = 40
TURN_S = 240
BACKENDS = ("bucket", "file_per_key", "offset_allocator")
# Mooncake's two ways to fill its disk, and nkv's policy of the same meaning.
WAYS = {"eager": "write_through", "on_evict": "evict_only"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disk", default="/var/tmp", help="a folder on the disk (/var/tmp)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("STORE", "WAY"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        return one(*flags.one, flags.disk)
    rounds = {}
    for _ in range(flags.rounds):
        for way in WAYS:
            for store in (*BACKENDS, "nkv"):
                figures = turn(store, way, flags.disk)
                print(f"{way} {store}: {json.dumps(figures)}", file=sys.stderr, flush=True)
                rounds.setdefault((way, store), []).append(figures)
    print(table(rounds))
    return 0


def turn(store, way, disk):
    command = [sys.executable, __file__, "--disk", disk, "--one", store, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TURN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{way} {store}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one(store, way, disk):
    """Measures one store in this process, and prints its figures."""
    answer = os.dup(1)
    os.dup2(2, 1)  # a library that writes to standard output must not spoil the line
    with tempfile.TemporaryDirectory(prefix="ssd-peers-", dir=disk) as folder:
        stores = nkv_store if store == "nkv" else mooncake
        with stores(store, way, folder) as opened:
            figures = measured(opened, folder)
        os.write(answer, (json.dumps(figures) + "\n").encode())
    return 0


@contextlib.contextmanager
def mooncake(backend, way, folder):
    os.environ.update(
        GLOG_minloglevel="2",
        MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=folder,
        MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=f"{backend}_storage_backend",
        MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1",
        MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(DISK_BYTES),
        MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(256 * MIB),
    )
    from mooncake.store import MooncakeDistributedStore

    port = free_port()
    flags = [f"-rpc_address={HOST}", f"-rpc_port={port}", f"-metrics_host={HOST}"]
    flags += [f"-metrics_port={free_port()}", "-default_kv_lease_ttl=500", "-enable_offload=true"]
    flags += ["-offload_on_evict=true"] if way == "on_evict" else []
    with mooncake_store.running("mooncake_master", port, *flags):
        store = MooncakeDistributedStore()
        where = (f"{HOST}:{port}", None, True, folder)
        rc = store.setup(HOST, "P2PHANDSHAKE", MEMORY_BYTES, 64 * MIB, "tcp", "", *where)
        expect(rc, 0, "setup")
        yield store


@contextlib.contextmanager
def nkv_store(_, way, folder):
    binaries = os.environ["NKV_BINARIES"]
    flags = ["--heap-bytes", str(MEMORY_BYTES), "--ssd-dir", folder]
    flags += ["--ssd-bytes", str(DISK_BYTES), "--ssd-policy", WAYS[way]]
    with tempfile.TemporaryDirectory() as own:
        sys.path.insert(0, nkv_python.package(binaries, own))
        os.environ["NKV_JOB"] = nodes.JOB
        from nkv import mooncake as by_name

        with nodes.one_rank(binaries, own, flags) as address:
            store = by_name.MooncakeDistributedStore()
            rc = store.setup(HOST, "", 0, 0, "tcp", "", address.removeprefix("tcp://"))
            expect(rc, 0, "setup")
            yield store
            store.close()


def measured(store, folder):
    memory = ctypes.create_string_buffer(BUFFER_BYTES + 4096)
    buffer = ctypes.addressof(memory) + -ctypes.addressof(memory) % 4096
    data = content(MIB)
    ctypes.memmove(buffer, data, MIB)
    expect(store.register_buffer(buffer, BUFFER_BYTES), 0, "register_buffer")
    start, again = time.perf_counter(), 0
    for number in range(OBJECTS):
        ctypes.memmove(buffer, number.to_bytes(8, "little"), 8)
        give_up = time.monotonic() + PUT_LIMIT_S
        while (rc := store.put_from(f"d/{number}", buffer, MIB)) != 0:
            if time.monotonic() > give_up:
                raise RuntimeError(f"put {number}: {rc} for {PUT_LIMIT_S} s")
            again += 1
            time.sleep(RETRY_S)
    put_s = time.perf_counter() - start
    wait_until_quiet(folder)
    only_disk = [n for n in range(OBJECTS) if is_on_disk_alone(store, n)]
    get_us = []
    for number in only_disk[:READS]:
        begin = time.perf_counter_ns()
        expect(store.get_into(f"d/{number}", buffer, MIB), MIB, "get_into")
        get_us.append((time.perf_counter_ns() - begin) / 1000)
        check(ctypes.string_at(buffer, MIB), number, data)
    batch_us = []
    rest = only_disk[READS:]
    for at in range(0, len(rest) - BATCH + 1, BATCH):
        numbers = rest[at : at + BATCH]
        keys = [f"d/{number}" for number in numbers]
        places = [buffer + i * MIB for i in range(BATCH)]
        begin = time.perf_counter_ns()
        expect(store.batch_get_into(keys, places, [MIB] * BATCH), [MIB] * BATCH, "batch_get_into")
        batch_us.append((time.perf_counter_ns() - begin) / 1000 / BATCH)
        for number, place in zip(numbers, places, strict=True):
            check(ctypes.string_at(place, MIB), number, data)
    return {
        "put_gb_per_s": round(OBJECTS * MIB / put_s / 1e9, 3),
        "put_again": again,
        "on_disk_alone": len(only_disk),
        "get_p50_us": round(statistics.median(get_us), 1),
        "get_of_16_p50_us": round(statistics.median(batch_us), 1) if batch_us else None,
    }


def check(got, number, data):
    if got[:8] != number.to_bytes(8, "little") or got[8:] != data[8:]:
        raise RuntimeError(f"object {number} came back changed")


def is_on_disk_alone(store, number):
    replicas = store.get_replica_desc(f"d/{number}")
    return bool(replicas) and not any(replica.is_memory_replica() for replica in replicas)


def wait_until_quiet(folder):
    """Until the disk has taken all; then its pages are dropped, where that is allowed."""
    before, limit = None, time.monotonic() + QUIET_LIMIT_S
    while time.monotonic() < limit and (now := written()) != before:
        before = now
        time.sleep(3)
    os.sync()
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")
    shutil.disk_usage(folder)


def written():
    """Sectors written to all disks, in MiB: those of the system's own log do not count."""
    with open("/proc/diskstats", encoding="utf-8") as file:
        return sum(int(line.split()[9]) for line in file) >> 11


def table(rounds):
    lines = [
        "| way | store | put GB/s | get p50 µs | in batches of 16, each µs | nkv: put x, get x |",
        "|---|---|---|---|---|---|",
    ]
    for (way, store), figures in rounds.items():
        own = rounds[way, "nkv"]
        pairs = list(zip(own, figures, strict=True))
        put = statistics.median(o["put_gb_per_s"] / f["put_gb_per_s"] for o, f in pairs)
        get = statistics.median(o["get_p50_us"] / f["get_p50_us"] for o, f in pairs)
        medians = [
            statistics.median(f[name] or 0 for f in figures)
            for name in ("put_gb_per_s", "get_p50_us", "get_of_16_p50_us")
        ]
        cells = [way, store, *(f"{median:g}" for median in medians), f"{put:.1f}, {get:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads of Mooncake do not survive an orderly shutdown.
    os._exit(status)
