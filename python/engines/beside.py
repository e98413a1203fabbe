"""What the checks of all engines share: their results, nkv's counters, and damage to stored values.

It stands beside the engine, in its process, with a handle of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import nkv

ADDRESS = os.environ["ENGINES_ADDRESS"]
JOB = os.environ["NKV_JOB"]
RESULTS = Path(os.environ["ENGINES_RESULTS"])
#: By then everything that was put is listed, and everything that was read is counted.
REPORTED_S = 10.0
#: Counters that did not change for so long have everything: four times the pause between reports.
SETTLED_S = 1.0

_HEADER_KEY_CHECK = 32


def run(main: Callable[[], None]) -> NoReturn:
    """Runs the checks and ends the process, also if threads of the engine remain."""
    status = 0
    try:
        main()
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Waits until something holds, but no longer; whether it does."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def check(what: str, passed: bool, detail: object = "") -> None:
    """Records whether something held."""
    _record({"check": what, "passed": bool(passed), "detail": str(detail)})


def check_served(what: str, served: int, expected: int) -> None:
    """Records whether nkv served an engine's bytes, and at most some description with them."""
    exact = expected <= served <= expected * 1.01
    check(f"{what}: nkv served it", exact, f"{served} bytes, of KV {expected}")


def figures(tokens: int, served: int) -> None:
    """Records what an engine loaded, and the bytes of it by nkv's counters."""
    _record({"tokens": tokens, "served": served})


def _record(line: dict[str, object]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


class Rank:
    """The rank that holds the values."""

    def __init__(self) -> None:
        self._cache = nkv.connect(ADDRESS, job=JOB)

    def keys(self, part: str = "") -> list[str]:
        """The stored keys that have this in them."""
        keys = [listed.key.decode() for listed in self._cache.keys()]
        return [key for key in keys if part in key]

    def settled(self, at_least: int = 0) -> int:
        """Bytes that were read, by the rank's counter, once it has stopped to change."""
        end = time.monotonic() + REPORTED_S
        last, since = -1, time.monotonic()
        while (now := time.monotonic()) < end and (last < at_least or now < since + SETTLED_S):
            read = int(self._cache.stats()["ranks"][0]["owner"]["bytes_read"])
            if read != last:
                last, since = read, now
            time.sleep(0.05)
        return last

    def damage_header(self, key: str) -> None:
        """Overwrites the check of a key in its object's header."""
        at = self._cache.get_location(key).header_off + _HEADER_KEY_CHECK
        self._flip(at, 8)

    def damage_payload(self, key: str) -> None:
        """Changes the second half of a value: an engine may keep a description in front."""
        place = self._cache.get_location(key)
        half = place.bytes_total // 8 * 4
        self._flip(place.payload_off + half, place.bytes_total - half)

    def _flip(self, at: int, size: int) -> None:
        # The segment's name leads to the node's own memory, which this user may write.
        incarnation = self._cache.stats()["ranks"][0]["incarnation"]
        with open(f"/dev/shm/nkv.{JOB}.0.{incarnation}", "r+b", buffering=0) as memory:
            was = os.pread(memory.fileno(), size, at)
            os.pwrite(memory.fileno(), flipped(was), at)


def damages(
    what: str, rank: Rank, key: str, load: Callable[[str], tuple[int, bool]], tokens: int
) -> None:
    """Damages one of the values that hold some tokens, and loads them.

    `load` takes a name and returns how many tokens were loaded, and whether they were the right
    ones.
    """
    rank.damage_payload(key)
    loaded, equal = load("damaged payload")
    missed = equal and loaded < tokens
    check(f"{what}: a damaged payload is a miss", missed, f"{loaded} tokens loaded")
    rank.damage_header(key)
    loaded, equal = load("damaged header")
    missed = equal and loaded < tokens
    check(f"{what}: a damaged header is a miss", missed, f"{loaded} tokens loaded")


def flipped(numbers: bytes) -> bytes:
    """Numbers of two or four bytes each, with other signs."""
    changed = bytearray(numbers)
    changed[1::2] = bytes(byte ^ 0x80 for byte in changed[1::2])
    return bytes(changed)
