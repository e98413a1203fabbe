#!/usr/bin/env python3
"""What a reader of Mooncake Store sees when one of three processes that hold segments is killed
(SIGKILL) in the middle of its gets: objects of two replicas each, by tcp.

    scripts/peers/mooncake_killed_holder.py [GETS] [SECONDS]

nkv beside it: `cargo test -p nkv-programs --test system -- replicas:: --nocapture`.
"""

import os
import random
import sys
import time

from measure import expect, stop
from mooncake_store import connected, master, start_holder, wait_until_it_holds

OBJECTS = 500
BYTES = 16 << 10
HOLDERS = 3


def percentile(sorted_us, share):
    return sorted_us[min(len(sorted_us) - 1, int(len(sorted_us) * share))]


def run(gets, seconds):
    from mooncake.store import ReplicateConfig

    with master() as address:
        holders = [start_holder(address) for _ in range(HOLDERS)]
        try:
            for holder in holders:
                wait_until_it_holds(holder)
            store = connected(address, 0)
            config = ReplicateConfig()
            config.replica_num = 2
            values = [random.Random(i).randbytes(BYTES) for i in range(OBJECTS)]
            for i, value in enumerate(values):
                expect(store.put(f"object/{i}", value, config), 0, "put")
            times, failed, wrong, began = [], 0, 0, time.monotonic()
            for n in range(gets):
                if n == gets // 2:
                    holders[1].kill()
                    holders[1].wait()
                if time.monotonic() - began > seconds:
                    break
                at = time.perf_counter()
                got = store.get(f"object/{n % OBJECTS}")
                times.append((time.perf_counter() - at) * 1e6)
                failed += not got
                wrong += bool(got) and got != values[n % OBJECTS]
            times.sort()
            took = time.monotonic() - began
            p50, p99 = percentile(times, 0.5), percentile(times, 0.99) / 1000
            print(
                f"{len(times)} of {gets} gets in {took:.1f} s: {failed} failed, {wrong} wrong; "
                f"p50 {p50:.0f} us, p99 {p99:.1f} ms, longest {times[-1] / 1000:.1f} ms",
                flush=True,
            )
        finally:
            for holder in holders:
                stop(holder)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    run(*(given + [10_000, 120][len(given) :]))
    # The library may crash when it is closed.
    os._exit(0)
