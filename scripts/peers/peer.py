"""Measures one peer in one mode on this machine and prints {mode: {size: {put_p50_us,
get_p50_us}}}.

Started by `scripts/peers/run MODE`, which provides the packages. One mode per process and seconds
each, so that `scripts/bench` can take turns between the peers and nkv.
"""

import json
import os
import sys
import traceback

import memory_copy
import mooncake_store
import nixl_read
import nkv_python
import redis_socket

MODES = {
    "memcpy": memory_copy.memcpy,
    "mooncake-local": mooncake_store.local,
    "mooncake-dummy": mooncake_store.dummy,
    "mooncake-tcp": mooncake_store.tcp,
    "nixl": nixl_read.nixl,
    "nkv-python": nkv_python.shm,
    "nkv-python-tcp": nkv_python.tcp,
    "redis": redis_socket.redis,
}


def check():
    """Loads what every mode loads, and measures nothing."""
    import mooncake.store  # noqa: F401
    import nixl._api  # noqa: F401

    for program in mooncake_store.PROGRAMS:
        mooncake_store.check_libraries(program)
    return {}


def main():
    modes = {**MODES, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in modes:
        print(f"usage: scripts/peers/run {' | '.join(modes)}", file=sys.stderr)
        return 2
    os.environ.setdefault("GLOG_minloglevel", "2")
    mode = sys.argv[1]
    # A library that writes to standard output must not spoil the one JSON line there.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        table = modes[mode]()
    except Exception:
        traceback.print_exc()
        return 1
    os.write(answer, (json.dumps({mode: table}) + "\n").encode())
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Native threads of the peers' libraries do not survive an orderly shutdown.
    os._exit(status)
