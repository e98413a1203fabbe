"""What only a process with a rank, or with its memory mapped, can do."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from fixtures import settings

import nkv


def test_a_view_is_in_place_and_keeps_its_bytes(cache: nkv.NanoKVCache, key: str) -> None:
    value = np.arange(100_000)
    cache.put(key, value)
    view = cache.get_view(key)
    assert not view.flags.writeable
    at = cache.get_location(key)
    assert view.ctypes.data == cache.device_ptr(at.owner_rank, at.payload_off)
    part = view[10:20]
    del view
    gc.collect()
    cache.remove(key)
    for i in range(200):
        cache.put(f"{key}/{i}", bytes(400_000))
    assert (part == value[10:20]).all()


def test_a_view_needs_mapped_memory(job: tuple[nkv.NanoKVCache, str, str], key: str) -> None:
    cache, name, address = job
    cache.put(key, b"bytes")
    with nkv.connect(address, job=name, transport="tcp") as handle:
        with pytest.raises(nkv.Unsupported, match="get_into"):
            handle.get_view(key)
        assert handle.heap_bases == [(0, 0)]
        with pytest.raises(nkv.Unsupported):
            handle.device_ptr(0, 0)
        with pytest.raises(nkv.Unsupported):
            _ = handle.rank


def test_a_kernels_writes_are_committed_by_key(cache: nkv.NanoKVCache, key: str) -> None:
    plan = cache.open_for_write(key, 4096)
    plan.write(0, bytes(4096))
    ctypes.memset(cache.device_ptr(plan.dst_rank, plan.payload_base), 7, 4096)
    cache.commit(key)
    assert bytes(cache.get(key)) == b"\7" * 4096
    with pytest.raises(nkv.NotFound):
        cache.commit(key)


def test_figures(cache: nkv.NanoKVCache, key: str) -> None:
    assert (cache.rank, cache.world_size) == (0, 1)
    ((payloads, control),) = cache.heap_bases
    assert payloads == control == cache.device_ptr(0, 0) and control % 4096 == 0
    cache.put(key, bytes(100))
    assert cache.stats()["ranks"][0]["rank"] == 0
    cache.evict_until_below(0.5)
    for ratio in (-0.1, 1.5, float("nan")):
        with pytest.raises(nkv.InvalidArgument):
            cache.evict_until_below(ratio)
    with pytest.raises(nkv.InvalidArgument):
        cache.device_ptr(0, 1 << 60)


def test_keys_are_listed_and_removed_by_pattern(cache: nkv.NanoKVCache, key: str) -> None:
    for i in range(20):
        cache.put(f"{key}/{i:02}", b"x")
    escaped = key.replace("[", r"\[").replace("]", r"\]")
    listed = list(cache.keys(f"^{escaped}/"))
    assert [row.key for row in listed] == [f"{key}/{i:02}".encode() for i in range(20)]
    assert {(row.bytes_total, row.rank) for row in listed} == {(1, 0)}
    assert cache.remove_matching(f"^{escaped}/0") == (10, 0)
    assert cache.exists_many([f"{key}/{i:02}" for i in range(20)]) == [False] * 10 + [True] * 10
    with pytest.raises(nkv.InvalidArgument):
        cache.remove_matching("(")
    assert cache.remove_all().in_memory >= 10
    assert not cache.remove_all()
    assert not cache.exists(f"{key}/19")


def test_replicas_are_counted(cache: nkv.NanoKVCache, key: str) -> None:
    assert cache.put_replicas([(key, b"kv"), (f"{key}/2", np.arange(5))], 2) == [1, 1]
    assert cache.put_replicas([(key, b"other")], 2) == [0], "it is there"
    assert (cache.get(key), list(cache.get(f"{key}/2"))) == (b"kv", [0, 1, 2, 3, 4])
    assert [found.owner_rank for found in cache.get_replicas(key)] == [0]
    numbers = [(f"{key}/n{i}", np.float64(i)) for i in range(100)]
    assert cache.put_replicas(numbers, 2) == [1] * 100
    assert [float(n) for n in cache.get_many([name for name, _ in numbers])] == list(range(100))
    cache.put(f"{key}/3", b"kv", replicas=8)
    cache.replicate([key, f"{key}/2"], 2)
    with pytest.raises(nkv.NotFound):
        cache.replicate([f"{key}/4"], 2)
    with pytest.raises(nkv.InvalidArgument, match="1 to 8"):
        cache.replicate([key], 0)
    with pytest.raises(nkv.InvalidArgument, match="1 to 8"):
        cache.put(key, b"kv", replicas=9)
    with pytest.raises(nkv.NotFound):
        cache.get_replicas(f"{key}/4")


def test_replicas_go_where_the_put_names_them(pair: nkv.NanoKVCache, key: str) -> None:
    pair.put(key, b"kv", preferred_segment=[1, "0:host"])
    assert [found.owner_rank for found in pair.get_replicas(key)] == [1, 0]
    assert pair.put_replicas([(f"{key}/2", b"kv")], 2, preferred_segment=[1, "device"]) == [1]
    asyncio.run(pair.aput(f"{key}/3", b"kv", preferred_segment="1:host"))
    assert [found.owner_rank for found in pair.get_replicas(f"{key}/3")] == [1]
    with pytest.raises(nkv.InvalidArgument, match="kind device"):
        pair.put(f"{key}/4", b"kv", preferred_segment="device")
    with pytest.raises(nkv.InvalidArgument, match="RANK:device"):
        pair.put(f"{key}/4", b"kv", preferred_segment="gpu")
    with pytest.raises(nkv.InvalidArgument, match="at most 8"):
        pair.put(f"{key}/4", b"kv", preferred_segment=range(9))


def test_values_in_stripes_come_back_as_they_were(pair: nkv.NanoKVCache, key: str) -> None:
    whole = np.arange(100_000, dtype=np.float32)
    pair.put(key, whole, stripes=2)
    pair.put_many([(f"{key}/2", whole), (f"{key}/3", b"kv")], stripes=64)
    for name in (key, f"{key}/2"):
        assert np.array_equal(pair.get(name), whole)
        room = np.empty_like(whole)
        assert pair.get(name, dst=room) is room
        assert np.array_equal(room, whole)
        assert pair.get_location(name).bytes_total == 69, "it is a manifest"
    assert pair.get(f"{key}/3") == b"kv", "too small to be cut"
    pair.remove(key)
    assert not pair.exists(key)
    with pytest.raises(nkv.InvalidArgument, match="1 to 64"):
        pair.put(key, whole, stripes=65)


def test_pinned_values_stay_when_a_rank_is_full() -> None:
    value = bytes(60_000)
    with nkv.NanoKVCache(**{**settings(), "heap_bytes": 8 << 20}) as cache:
        cache.put("hard", value, hard_pin=True)
        cache.put_many([("soft", value)], soft_pin_ttl=3_600)
        asyncio.run(cache.aput("first", value, evict_first=True))
        for i in range(400):
            cache.put(f"flood/{i}", value, if_exists="fail")
        there = [cache.exists(key) for key in ("hard", "soft", "first", "flood/0", "flood/399")]
        assert there == [True, True, False, False, True]
        with pytest.raises(nkv.InvalidArgument, match="exclude"):
            cache.put("both", value, hard_pin=True, evict_first=True)
        for seconds in (0.5, 1 << 24):
            with pytest.raises(nkv.InvalidArgument, match="16777215 seconds"):
                cache.put("long", value, soft_pin_ttl=seconds)


def group_reads(cache: nkv.NanoKVCache) -> int:
    return sum(rank["owner"]["group_reads"] for rank in cache.stats()["ranks"])


def test_a_read_of_one_of_a_group_counts_for_the_others() -> None:
    with nkv.NanoKVCache(**settings()) as cache:
        cache.put("alone", b"kv")
        cache.put("one", b"kv", group="conversation", if_exists="fail")
        names = [("two", b"kv"), ("three", b"kv")]
        cache.put_many(names, group=b"conversation", if_exists="fail")
        asyncio.run(cache.aput("four", b"kv", group="conversation", hard_pin=True))
        # The others' turn comes with one read.
        assert cache.get("alone") == cache.get("one") == b"kv"
        deadline = time.monotonic() + 60
        while group_reads(cache) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert group_reads(cache) == 3
        for wrong in ("", "x" * 1025):
            with pytest.raises(nkv.InvalidArgument, match="name of a group has 1 to 1024"):
                cache.put("wrong", b"kv", group=wrong)
        for kind in (7, ["a"]):
            with pytest.raises(TypeError, match="group"):
                cache.put("wrong", b"kv", group=kind)  # type: ignore[arg-type]
        with pytest.raises(nkv.InvalidArgument, match="2 groups for 1 keys"):
            cache.put_many([("wrong", b"kv")], group=["a", None])
        cache.put_many([("five", b"kv"), ("six", b"kv")], group=["pair", None])
        assert not cache.exists("wrong")


def test_a_value_goes_some_time_after_its_first_read_on_all_ranks(
    pair: nkv.NanoKVCache, key: str
) -> None:
    for n in range(2):
        pair.put(f"{key}/{n}", b"kv", ttl_after_first_get=1, replicas=2)
    assert pair.get(f"{key}/0") == b"kv"
    deadline = time.monotonic() + 60
    while pair.exists(f"{key}/0"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert pair.exists(f"{key}/1"), "it was not read"
    pair.remove(f"{key}/1")
    with pytest.raises(nkv.InvalidArgument, match="ttl_after_first_get 0"):
        pair.put(key, b"kv", ttl_after_first_get=0)
    with pytest.raises(nkv.InvalidArgument, match="exclude"):
        pair.put(key, b"kv", ttl_after_first_get=1, hard_pin=True)


def test_wrong_settings_are_errors_that_name_them() -> None:
    for wrong, named in [
        ({"heap_bytes": "64MB"}, "heap_bytes"),
        ({"heap_bytes": 0}, "heap_bytes"),
        ({"policy": "random"}, "policy"),
        ({"rank": 1}, "world"),
        ({"master_rank": 1}, "master_rank"),
        ({"page_bytes": 0}, "page_bytes"),
    ]:
        with pytest.raises(nkv.InvalidArgument, match=named):
            nkv.NanoKVCache(**{**settings(), **wrong})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="heap_byte"):
        nkv.NanoKVCache(heap_byte=1)
    with pytest.raises(nkv.OutOfMemory):
        nkv.NanoKVCache(heap_bytes=7 << 40, **{**settings(), "prefault": True})
    with pytest.raises(nkv.Disconnected):
        nkv.connect("127.0.0.1:1")
    with pytest.raises(nkv.InvalidArgument):
        nkv.connect("7400")


def test_an_error_names_arguments_and_no_flags(job: tuple[nkv.NanoKVCache, str, str]) -> None:
    _, name, address = job
    with pytest.raises(nkv.InvalidArgument, match=f"give job {name}, or NKV_JOB"):
        nkv.connect(address, job="another")


def test_a_closed_cache_refuses_every_call() -> None:
    cache = nkv.NanoKVCache(16 << 20, **settings())
    cache.put("a", b"b")
    got = cache.get("a")
    cache.close()
    cache.close()
    assert bytes(got) == b"b"
    for call in (cache.get, cache.exists, cache.remove):
        with pytest.raises(nkv.Disconnected):
            call("a")


def run(program: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def succeeds(program: str) -> None:
    """Runs a program that must end with 0."""
    done = run(program)
    assert done.returncode == 0, done.stderr


START = """
import os, nkv
cache = nkv.NanoKVCache(16 << 20, port=0, job=f"py-{os.getpid()}", http="off", prefault=False)
cache.put("a", b"b")
"""


def test_a_program_that_forgets_to_close_leaves_no_segment() -> None:
    done = run(START + "\nprint('nkv.py-' + str(os.getpid()))")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert name and not [file for file in os.listdir("/dev/shm") if file.startswith(name + ".")]


def test_a_forked_child_gets_an_error_and_ends() -> None:
    program = (
        START
        + """
child = os.fork()
if child == 0:
    try:
        cache.get("a")
    except nkv.Disconnected as error:
        # Ends as a program does: what the interpreter drops must not hang.
        raise SystemExit(0 if "fork" in str(error) else 1)
    raise SystemExit(2)
assert os.waitpid(child, 0)[1] == 0
assert bytes(cache.get("a")) == b"b"
"""
    )
    succeeds(program)


def test_a_forked_child_leaves_its_parents_plan_alone() -> None:
    program = (
        START
        + """
plan = cache.open_for_write("plan", 4)
child = os.fork()
if child == 0:
    try:
        plan.write(0, b"ours")
    except nkv.Disconnected:
        del plan
        raise SystemExit(0)
    raise SystemExit(1)
assert os.waitpid(child, 0)[1] == 0
plan.write(0, b"mine")
plan.commit()
assert bytes(cache.get("plan")) == b"mine"
"""
    )
    succeeds(program)


def test_a_forked_child_connects_anew() -> None:
    program = (
        START
        + """
import asyncio
address, job = cache.control_address, f"py-{os.getpid()}"
# The parent has used every kind of runtime before.
assert bytes(cache.get_when_ready("a", 5)) == b"b"
assert bytes(asyncio.run(cache.aget("a"))) == b"b"
child = os.fork()
if child == 0:
    with nkv.connect(address, job=job) as handle:
        handle.put("child", b"c")
        assert bytes(handle.get_when_ready("a", 5)) == b"b"
        assert bytes(asyncio.run(handle.aget("child"))) == b"c"
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
assert bytes(cache.get_when_ready("child", 5)) == b"c"
"""
    )
    succeeds(program)


def test_ctrl_c_ends_a_long_wait() -> None:
    program = (
        START
        + """
import signal, threading, time
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    cache.get_when_ready("never", 50)
except KeyboardInterrupt:
    raise SystemExit(0 if time.monotonic() - began < 40 else 3)
raise SystemExit(2)
"""
    )
    succeeds(program)


def test_nkv_needs_neither_numpy_nor_torch() -> None:
    program = (
        """
import sys
sys.modules["numpy"] = sys.modules["torch"] = None
"""
        + START
        + """
import array
cache.put("array", array.array("d", [1, 2, 3]))
assert bytes(cache.get("a")) == b"b" and len(cache.get("array")) == 24
assert sys.modules["numpy"] is None
"""
    )
    succeeds(program)


def test_a_child_that_touches_a_view_gets_an_error() -> None:
    program = (
        START
        + """
cache.put("view", bytes(100))
view = cache._c.view("view")
child = os.fork()
if child == 0:
    try:
        len(view)
    except nkv.Disconnected as error:
        raise SystemExit(0 if "fork" in str(error) else 1)
    raise SystemExit(2)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    succeeds(program)


def test_ranks_that_come_and_go_quickly_all_start() -> None:
    program = f"""
import nkv, os
settings = {{"job": "quick-{os.getpid()}", "port": {_free_port()}, "prefault": False}}
with nkv.NanoKVCache(16 << 20, ttl_ms=3000, **settings) as cache:
    cache.put(f"of {{cache.rank}}", b"x", preferred_segment=0)
    if cache.rank == 0:
        # The master must outlive the others.
        import time
        while not all(cache.exists_many(["of 1", "of 2"])):
            time.sleep(0.05)
        time.sleep(2)
"""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **launched},
        )
        for rank in range(3)
        for launched in [{"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}]
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=60)
        assert rank.returncode == 0, errors


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_handle_goes_on_after_its_only_rank_was_started_again() -> None:
    program = os.path.join(os.environ["NKV_PROGRAMS"], "nkv-node")
    job, port = f"again-{os.getpid()}", _free_port()
    command = [program, "--heap-bytes", "16MiB", "--port", str(port), "--job", job]

    def start() -> subprocess.Popen[str]:
        node = subprocess.Popen(
            [*command, "--no-prefault", "--http", "off"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert node.stdout is not None and "ready" in node.stdout.readline()
        return node

    node = start()
    with nkv.connect(f"127.0.0.1:{port}", job=job) as handle:
        # The names of two masters are random: with the wrong order of them it once failed for good.
        for round_ in range(6):
            handle.put(f"before {round_}", b"x")
            node.kill()
            node.wait()
            node = start()
            deadline = time.monotonic() + 20
            while True:
                try:
                    handle.put(f"after {round_}", b"y", if_exists="fail")
                    break
                except (nkv.Disconnected, nkv.NotReady, nkv.Timeout):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            assert bytes(handle.get(f"after {round_}")) == b"y"
    node.terminate()
    node.wait()


def test_memory_is_registered_where_there_is_a_device(cache: nkv.NanoKVCache) -> None:
    # scripts/rdma-test tests devices; here is none, or the module is built without.
    with pytest.raises(nkv.Unsupported, match=r"RDMA|rdma"):
        cache.register(bytearray(8192))
    with pytest.raises(ValueError, match="address 0"):
        cache.register((0, 10))


def test_a_transport_that_is_not_here_is_refused_at_once(
    job: tuple[nkv.NanoKVCache, str, str],
) -> None:
    _, name, address = job
    with pytest.raises(nkv.Unsupported, match="transport rdma"):
        nkv.connect(address, job=name, transport="rdma")


def test_copies_on_disk_are_served_by_the_next_process(tmp_path: Path) -> None:
    named = settings() | {"ssd_dir": tmp_path, "ssd_bytes": 256 << 20}
    array = np.arange(1000)
    with nkv.NanoKVCache(64 << 20, **named) as cache:
        cache.put("put", array, preferred_segment=["any", "disk"])
        cache.put_many([("many/1", b"1"), ("many/2", b"2")], preferred_segment="0:disk")
        cache.put("memory", b"kv")
        cache.put("saved", b"later")
        assert cache.save_to_disk(["saved", "put"]) == [[0], [0]]
        assert cache.save_to_disk(["saved"], disks=[0]) == [[0]]
        with pytest.raises(nkv.NotFound):
            cache.save_to_disk(["saved", "none"])
        with pytest.raises(nkv.InvalidArgument, match="1 to 8"):
            cache.save_to_disk(["saved"], disks=[])
        with pytest.raises(nkv.InvalidArgument, match="2 disks: 1 ranks have one now"):
            cache.put("two", b"kv", preferred_segment=["disk", "disk"])
    with nkv.NanoKVCache(64 << 20, **named) as cache:
        assert (cache.get("put") == array).all()
        assert cache.get_many(["many/1", "many/2", "saved"]) == [b"1", b"2", b"later"]
        assert not cache.exists("memory")


def test_a_copy_on_disk_without_a_disk_is_an_error(cache: nkv.NanoKVCache, key: str) -> None:
    with pytest.raises(nkv.InvalidArgument, match="no rank has a disk: start one with ssd_dir"):
        cache.put(key, b"kv", preferred_segment="disk")
    assert not cache.exists(key), "nothing was stored"
    with pytest.raises(nkv.InvalidArgument, match="9 disks: at most 8"):
        cache.put(key, b"kv", preferred_segment=["disk"] * 9)
