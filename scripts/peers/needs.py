#!/usr/bin/env python3
"""What `scripts/bench` needs, looked for before anything is built or measured: memory, /dev/shm,
programs, and the peers' packages with every library that they link.

    scripts/peers/needs.py      exit status 1 and one line for each thing that is missing
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
# A node of 6 GiB and its load; peers put segments of 2 GiB into /dev/shm.
MEMORY_BYTES = 12 * GIB
SHM_BYTES = 4 * GIB
PROGRAMS = {"cargo": "https://rustup.rs", "redis-server": "apt-get install redis-server"}
INSTALL_S = 900


def available_bytes():
    """What the kernel counts as available. A limit of a control group is not looked at."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def memory():
    free = available_bytes()
    if free < MEMORY_BYTES:
        yield f"{MEMORY_BYTES / GIB:.0f} GiB of memory; {free / GIB:.1f} are available"
    shm = os.statvfs("/dev/shm")
    size = shm.f_bavail * shm.f_frsize
    if size < SHM_BYTES:
        yield (
            f"{SHM_BYTES / GIB:.0f} GiB in /dev/shm; {size / GIB:.1f} are free: "
            "mount -o remount,size=8G /dev/shm"
        )


def programs():
    for program, source in PROGRAMS.items():
        if shutil.which(program) is None:
            yield f"{program}: {source}"


def packages():
    """Installs them on the first run; each peer's program and library is loaded once."""
    command = [os.path.join(HERE, "run"), "check"]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield f"the peers' packages: not installed within {INSTALL_S} s"
        return
    if ended.returncode != 0:
        last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
        yield f"the peers' packages: {''.join(last) or 'scripts/peers/run check failed'}"


def main():
    missing = [line for check in (memory, programs, packages) for line in check()]
    for line in missing:
        print(f"scripts/bench needs {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
