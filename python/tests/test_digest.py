"""The digest behind a value's bytes."""

from __future__ import annotations

import random

from nkv import _nkv


def test_what_was_sealed_is_known_again_however_it_is_cut() -> None:
    random.seed(3)
    for size in (0, 1, 15, 16, 17, 1000):
        value = random.randbytes(size)
        sealed = value + _nkv.seal([value[: size // 3], value[size // 3 :]])
        for _ in range(20):
            room = bytearray(sealed + bytes(random.randrange(40)))
            cuts = sorted(random.randrange(len(room) + 1) for _ in range(3))
            view = memoryview(room)
            parts = [view[a:b] for a, b in zip([0, *cuts], [*cuts, len(room)], strict=True)]
            assert _nkv.unseal(parts, len(sealed)) == size


def test_any_change_is_seen() -> None:
    sealed = bytearray(bytes(range(100)))
    sealed += _nkv.seal([sealed])
    for at in range(len(sealed)):
        sealed[at] ^= 1
        assert _nkv.unseal([sealed], len(sealed)) is None
        sealed[at] ^= 1
    assert _nkv.unseal([sealed], len(sealed)) == 100
    for read in (0, 15, 16, 99, len(sealed) - 1, len(sealed) + 1, 1 << 40):
        assert _nkv.unseal([sealed], read) is None
