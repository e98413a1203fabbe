"""Mooncake's names: its recorded answers, and what engines do with them."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mooncake_calls
import numpy as np
import pytest

import nkv
from nkv import mooncake

RECORDED = Path(__file__).parent / "recorded/mooncake-0.3.13.json"

#: What nkv answers otherwise, and why.
EMPTY = "nkv stores empty values; Mooncake returns 0 and stores nothing"
DIFFERENT = {
    "28 is_exist('f0')": (1, EMPTY),
    "46 is_exist('pn')": (1, EMPTY),
    "40 batch_get_into_multi_buffers(['m1'], [[q+0, q+500]], [[100, 100]])": (
        [150],
        "a value that is shorter than its places is read",
    ),
    "63 get_hostname()": ("127.0.0.1", "without the port of a transfer engine, which nkv has not"),
    "74 remove_all(True)": (8, "the empty values count"),
}


def test_answers_are_those_of_mooncake(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    cache, _, address = job

    def settle() -> None:
        # The owner hears names some 200 ms later.
        deadline = time.monotonic() + 20
        while sum(row.key.startswith(b"m") for row in cache.keys()) < 2:
            assert time.monotonic() < deadline

    recorded = {name: answer for name, answer in json.loads(RECORDED.read_text())}
    replayed = mooncake_calls.calls(store, address.removeprefix("tcp://"), settle)
    assert [name for name, _ in replayed] == list(recorded)
    for name, answer in replayed:
        expected = DIFFERENT[name][0] if name in DIFFERENT else recorded[name]
        assert answer == expected, f"{name}: Mooncake answers {recorded[name]!r}"
    assert all(recorded[name] != expected for name, (expected, _) in DIFFERENT.items())


def test_setup_takes_positions_names_and_a_dict_of_text(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    address = job[2].removeprefix("tcp://")
    named = {"local_hostname": "here", "master_server_addr": address, "protocol": "tcp"}
    for args, kwargs in [
        (("here", "P2PHANDSHAKE", 1, 1, "tcp", "", address), {}),
        ((), named),
        ((named,), {}),
        (({"local_hostname": "here", "master_server_address": address},), {}),
        (({**named, "global_segment_size": "1024", "local_buffer_size": "1024"},), {}),
        (("here", "P2PHANDSHAKE", 1, 1, "tcp", "", address, None), {"tenant_id": "default"}),
    ]:
        assert store.setup(*args, **kwargs) == 0
        assert store.get_hostname() == "here"
        assert store.put("k", b"v") == 0
        assert store.close() == 0
    assert store.setup("here", "", 1, 1, "tcp", "", "127.0.0.1:1") < 0
    # Two tenants must not share keys.
    assert store.setup({**named, "tenant_id": "x"}) == -600


def test_without_setup_and_after_close_every_call_returns_a_code(
    store: mooncake.MooncakeDistributedStore,
) -> None:
    buffer = ctypes.create_string_buffer(100)
    at = ctypes.addressof(buffer)
    for _ in range(2):
        assert store.put("a", b"b") == -600
        assert store.put_from("a", at, 10) == -600
        assert store.batch_put_from(["a"], [at], [10]) == [-600]
        assert store.get("a") == b""
        assert store.get_batch(["a"]) == [b""]
        assert store.get_buffer("a") is None
        assert store.get_into("a", at, 10) == -600
        assert store.batch_get_into(["a"], [at], [10]) == [-600]
        assert store.is_exist("a") == -600
        assert store.batch_is_exist(["a"]) == [-600]
        assert store.get_size("a") == -600
        assert store.remove("a") == -600
        assert store.remove_all() == -600
        assert store.health_check() == 1
        assert store.close() == 0


def test_arrays_are_stored_whole_and_addresses_are_checked(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    array = np.arange(1000, dtype="f4")
    assert store.put("array", array) == 0
    assert store.get("array") == array.tobytes()
    assert store.put("part", array[::2]) == -600
    assert store.put("big", np.arange(3, dtype=">f4")) == 0
    assert store.get("big") == np.arange(3, dtype=">f4").tobytes()
    for at, size in [(0, 100), (-1, 100), (array.ctypes.data, -1)]:
        assert store.put_from("no", at, size) == -600
        assert store.get_into("array", at, size) == -600
        assert store.batch_put_from(["no"], [at], [size]) == [-600]
        assert store.batch_get_into(["array"], [at], [size]) == [-600]
    assert store.is_exist("no") == 0
    buffer = store.get_buffer("array")
    assert buffer is not None and buffer.size() == 4000
    assert np.frombuffer(memoryview(buffer).cast("B"), "f4")[-1] == 999


def test_pieces_of_many_blocks_in_one_call(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    # As a KV cache lies: for each layer a pool of blocks.
    layers, blocks, size = 8, 64, 4096
    pool = np.random.default_rng(1).integers(0, 255, (layers, blocks, size), dtype="u1")
    keys = [f"block/{i}" for i in range(blocks)]
    places = [
        [pool[layer, block].ctypes.data for layer in range(layers)] for block in range(blocks)
    ]
    sizes = [[size] * layers] * blocks
    assert store.batch_put_from_multi_buffers(keys, places, sizes) == [0] * blocks
    before = pool.copy()
    pool[:] = 0
    read = store.batch_get_into_multi_buffers(keys, places, sizes)
    assert read == [layers * size] * blocks
    assert (pool == before).all()


def test_an_upsert_that_is_refused_leaves_the_value_and_one_that_returns_0_is_there(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    assert store.put("up", b"first") == 0
    for refused in (
        lambda: store.upsert("up", b""),
        lambda: store.upsert("up", np.arange(10)[::2]),
        lambda: store.upsert_from("up", 0, 10),
        lambda: store.upsert_batch(["up"], []),
    ):
        assert refused() == -600
        assert store.get("up") == b"first"
    ends = threading.Event()

    def put() -> None:
        while not ends.is_set():
            store.put("up", b"other")

    other = threading.Thread(target=put)
    other.start()
    codes = {store.upsert("up", str(i).encode()) for i in range(100)}
    ends.set()
    other.join()
    # In the way of the other's puts it may be refused, but 0 is no lie.
    assert codes <= {0, -705, -703}
    assert store.upsert("up", b"last") == 0
    assert store.get("up") == b"last"


def test_one_bad_key_fails_alone(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    assert store.put("good", b"x") == 0
    assert store.batch_is_exist(["good", "", "x" * 2000, "no"]) == [1, 0, -600, 0]


def test_values_made_on_the_way_are_stored_whole(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0

    class Lazy:
        """Makes each array when it is asked for it."""

        def __len__(self) -> int:
            return 50

        def __getitem__(self, at: int) -> np.ndarray:
            if at >= len(self):
                raise IndexError
            return np.full(1000, at)

    keys = [f"lazy/{i}" for i in range(50)]
    assert store.put_batch(keys, Lazy()) == 0  # type: ignore[arg-type]
    for i, value in enumerate(store.get_batch(keys)):
        assert (np.frombuffer(value, "i8") == i).all()


def test_threads_share_a_store(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    assert store.setup("", "", 0, 0, "tcp", "", job[2]) == 0
    wrong: list[str] = []

    def work(number: int) -> None:
        into = bytearray(5000)
        at = ctypes.addressof((ctypes.c_char * 5000).from_buffer(into))
        for i in range(100):
            value = np.random.default_rng(number * 1000 + i).bytes(5000)
            key = f"t/{number}/{i}"
            if store.put(key, value) != 0 or store.get_into(key, at, 5000) != 5000 or into != value:
                wrong.append(key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert wrong == []


def test_each_key_of_a_batch_has_the_group_that_is_named_for_it(
    store: mooncake.MooncakeDistributedStore, job: tuple[nkv.NanoKVCache, str, str]
) -> None:
    cache, config = job[0], mooncake.ReplicateConfig()
    assert store.setup("here", "P2PHANDSHAKE", 0, 0, "tcp", "", job[2]) == 0
    config.group_ids = ["a", "", "b", "a"]
    keys, values = [f"g/{i}" for i in range(4)], [bytes([i]) * 100 for i in range(4)]
    assert store.put_batch(keys, values, config) == 0
    assert store.upsert_batch(keys, values, config) == 0
    assert [store.get(key) for key in keys] == values
    into = np.zeros(400, dtype=np.uint8)
    at = [into.ctypes.data + 100 * i for i in range(4)]
    assert store.register_buffer(into.ctypes.data, 400) == 0
    names = [f"p/{i}" for i in range(4)]
    assert store.batch_put_from(names, at, [100] * 4, config) == [0] * 4
    config.group_ids = ["alone"]
    assert store.put("g/5", b"kv", config) == 0
    assert store.put_parts("g/6", b"kv", config=config) == 0
    # One for each key, or none at all.
    for put in (store.put_batch, store.upsert_batch):
        assert put(["g/7", "g/8"], values[:2], config) == -600
    assert store.batch_put_from(["g/7", "g/8"], at[:2], [100] * 2, config) == [-600] * 2
    assert store.batch_is_exist(["g/7", "g/8", *keys]) == [0, 0, 1, 1, 1, 1]

    def owner() -> dict[str, int]:
        figures: dict[str, int] = cache.stats()["ranks"][0]["owner"]
        return figures

    def read_by_owner(key: str) -> int:
        """Reads a key; returns what counted as read besides, once its owner knows."""
        before, deadline = owner(), time.monotonic() + 60
        assert store.get(key) != b""
        while (after := owner())["gets_served"] == before["gets_served"]:
            assert time.monotonic() < deadline
        return after["group_reads"] - before["group_reads"]

    # Of "a" there are three others, of "b" one, of "" none. Its owner hears of groups some 200 ms
    # after a put, and a group that was just read does not count.
    deadline = time.monotonic() + 60
    while [read_by_owner(key) for key in ("g/0", "g/1", "g/2")] != [3, 0, 1]:
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_folder_makes_import_mooncake_lead_here(
    job: tuple[nkv.NanoKVCache, str, str], tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NKV_JOB": job[1]}
    command = [sys.executable, "-m", "nkv.mooncake", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert shown == f"export PYTHONPATH={tmp_path}${{PYTHONPATH:+:$PYTHONPATH}}\n"
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    program = f"""
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
store = MooncakeDistributedStore()
assert store.setup("here", "P2PHANDSHAKE", 0, 0, "rdma", "", "{job[2]}") == 0
config = ReplicateConfig()
config.replica_num, config.with_soft_pin, config.soft_pin_ttl_ms = 2, True, 1
assert store.put("folder", b"value", config) == 0 and store.get("folder") == b"value"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    other = tmp_path / "other/mooncake"
    other.mkdir(parents=True)
    with pytest.raises(nkv.InvalidArgument, match="another directory"):
        mooncake.install(other.parent)
