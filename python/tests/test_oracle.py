"""Threads and processes at once on one rank, and a rule that says what each key must hold.

NKV_ORACLE_S: seconds of load, 6 if not given.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

import nkv

SECONDS = float(os.environ.get("NKV_ORACLE_S", "6"))
THREADS, PROCESSES = 8, 8
#: Twice what the rank has room for.
KEYS = 3_000
MOST_BYTES = 90_000
BATCH = 12
HEAP_BYTES = 64 << 20
JOB = f"oracle-{os.getpid()}"

Bytes = NDArray[np.uint8]


def length(number: int) -> int:
    """Bytes of a key's value."""
    return 1 + number * 7919 % MOST_BYTES


def pattern(number: int) -> Bytes:
    """The value of a key: any byte that is another's, or of another place, differs in most runs."""
    counts = np.arange((length(number) + 7) // 8, dtype=np.uint64)
    mixed = (counts + np.uint64(number * 1_000_003 + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed ^ (mixed >> np.uint64(29))).view(np.uint8)[: length(number)]


def name(number: int) -> str:
    """A key."""
    return f"oracle/{number}"


class Worker:
    """Random calls; counts what was read right and what was not."""

    def __init__(self, cache: nkv.NanoKVCache, seed: int) -> None:
        self.cache, self.random, self.seen = cache, random.Random(seed), Counter[str]()
        self.room = np.zeros((BATCH, MOST_BYTES), np.uint8)

    def judge(self, number: int, found: Bytes | None) -> None:
        """Compares what was read with what must be there; nothing is an answer, too."""
        if found is None:
            self.seen["absent"] += 1
        else:
            right = np.array_equal(found, pattern(number))
            self.seen["right" if right else "wrong"] += 1

    def put(self) -> None:
        numbers = self.random.sample(range(KEYS), self.random.choice([1, BATCH]))
        values = [pattern(number).tobytes() for number in numbers]
        if len(numbers) == 1:
            self.cache.put(name(numbers[0]), values[0])
        else:
            self.cache.put_many(zip(map(name, numbers), values, strict=True))
        self.seen["put"] += len(numbers)

    def get(self) -> None:
        number = self.random.randrange(KEYS)
        try:
            self.judge(number, np.frombuffer(self.cache.get(name(number)), np.uint8))
        except nkv.NotFound:
            self.judge(number, None)

    def get_into(self) -> None:
        numbers = self.random.sample(range(KEYS), BATCH)
        places = [self.room[i, : length(n)] for i, n in enumerate(numbers)]
        found = self.cache.get_many_into(zip(map(name, numbers), places, strict=True))
        for number, place, size in zip(numbers, places, found, strict=True):
            self.judge(number, None if size is None else place[:size])

    def view(self) -> None:
        number = self.random.randrange(KEYS)
        try:
            view = self.cache.get_view(name(number))
        except nkv.NotFound:
            return self.judge(number, None)
        except nkv.Unsupported:
            return None
        # What is viewed must not change while others put and evict.
        time.sleep(self.random.random() / 500)
        return self.judge(number, np.frombuffer(view, np.uint8))

    def remove(self) -> None:
        try:
            self.cache.remove(name(self.random.randrange(KEYS)))
            self.seen["removed"] += 1
        except nkv.NotFound:
            pass

    def run(self, until: float) -> None:
        """Until that time."""
        calls = [self.put, self.put, self.get, self.get, self.get_into, self.view, self.remove]
        while time.monotonic() < until and not self.seen["wrong"]:
            try:
                self.random.choice(calls)()
            except (nkv.NotReady, nkv.Reclaimed):
                # Another writes this key by a plan, since the log is full, or removed it meanwhile.
                self.seen["busy"] += 1
            except nkv.Error as error:
                self.seen[f"failed: {error!r}"] += 1


def process(address: str, job: str, seed: int, answer: Connection) -> None:
    """One process that attached by itself; half of them by tcp."""
    with nkv.connect(address, job=job, transport="tcp" if seed % 2 else "auto") as cache:
        worker = Worker(cache, seed)
        worker.run(time.monotonic() + SECONDS)
        answer.send(worker.seen)


def test_no_thread_and_no_process_reads_another_keys_bytes() -> None:
    spawn = multiprocessing.get_context("spawn")
    with nkv.NanoKVCache(HEAP_BYTES, job=JOB, port=0, http="off", prefault=False) as cache:
        pipes, processes = [], []
        for seed in range(PROCESSES):
            ours, theirs = spawn.Pipe()
            arguments = (cache.control_address, JOB, seed, theirs)
            processes.append(spawn.Process(target=process, args=arguments))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        workers = [Worker(cache, 100 + i) for i in range(THREADS)]
        until = time.monotonic() + SECONDS
        threads = [threading.Thread(target=worker.run, args=(until,)) for worker in workers]
        for thread in threads:
            thread.start()
        seen = Counter[str]()
        for pipe in pipes:
            assert pipe.poll(SECONDS + 120)
            seen += pipe.recv()
        for thread in threads:
            thread.join()
        for one in processes:
            one.join(60)
            assert one.exitcode == 0
        for worker in workers:
            seen += worker.seen
    print(dict(seen))
    assert not [what for what in seen if what == "wrong" or what.startswith("failed")], seen
    assert min(seen["right"], seen["put"], seen["removed"], seen["absent"]) > 100, seen


def test_the_rule_sees_one_wrong_byte() -> None:
    with nkv.NanoKVCache(HEAP_BYTES, port=0, job=JOB + "b", http="off", prefault=False) as cache:
        worker = Worker(cache, 1)
        false = bytearray(pattern(7).tobytes())
        false[-1] ^= 1
        cache.put(name(7), bytes(false))
        worker.judge(7, np.frombuffer(cache.get(name(7)), np.uint8))
        assert worker.seen == {"wrong": 1}
