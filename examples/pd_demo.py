"""Prefill in one process, decode in another, with nkv between them; NumPy alone.

    pip install . numpy
    python examples/pd_demo.py

A tiny transformer with random weights. The prefill worker computes the KV of a prompt and pushes it
block by block into the memory of the decode worker's rank; the decode worker finds the longest
cached prefix and goes on from there. Its tokens are compared with those of one process that does
all of it. Then what must fail: another layout's fingerprint finds nothing, and a block whose values
are flipped gives other tokens.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import nkv

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 3, 4, 16, 128
WIDTH = HEADS * HEAD_DIM
BLOCK_TOKENS = 16
PROMPT_TOKENS, NEW_TOKENS = 100, 32
JOB = f"pd-demo-{os.getpid()}"
#: What two ranks must share for a block of one to be of use to the other.
FINGERPRINT = f"pd-demo/1 L{LAYERS} H{HEADS} D{HEAD_DIM} B{BLOCK_TOKENS} float32"

Floats = NDArray[np.float32]


@dataclass
class Model:
    """Weights; the same in every process that draws them from the same seed."""

    embedding: Floats
    projections: Floats
    head: Floats

    @classmethod
    def of_seed(cls, seed: int) -> Model:
        """A model."""
        random = np.random.default_rng(seed)
        scale = np.float32(1 / np.sqrt(WIDTH))
        embedding = random.standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
        # Attention counts as much as the token itself: else each token would follow itself.
        projections = random.standard_normal((LAYERS, 4, WIDTH, WIDTH), dtype=np.float32)
        head = random.standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
        return cls(embedding, projections * 3 * scale, head)

    def step(self, token: int, at: int, keys_values: Floats) -> Floats:
        """Logits after one token at a position, whose keys and values are written to the cache."""
        x = self.embedding[token] + np.sin(np.arange(WIDTH, dtype=np.float32) * at / 7)
        for layer in range(LAYERS):
            query, key, value, out = self.projections[layer]
            normed = x / np.sqrt((x * x).mean() + 1e-5)
            keys_values[layer, 0, at] = (normed @ key).reshape(HEADS, HEAD_DIM)
            keys_values[layer, 1, at] = (normed @ value).reshape(HEADS, HEAD_DIM)
            keys, values = keys_values[layer, :, : at + 1]
            q = (normed @ query).reshape(HEADS, HEAD_DIM)
            scores = np.einsum("hd,thd->ht", q, keys) / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            x = x + np.einsum("ht,thd->hd", weights, values).reshape(WIDTH) @ out
        logits: Floats = self.head @ x
        return logits


def empty_cache() -> Floats:
    """Keys and values: layer, key or value, token, head, dimension."""
    tokens = PROMPT_TOKENS + NEW_TOKENS
    return np.zeros((LAYERS, 2, tokens, HEADS, HEAD_DIM), np.float32)


def prompt() -> list[int]:
    """The prompt's tokens."""
    return [int(token) for token in np.random.default_rng(7).integers(0, VOCABULARY, PROMPT_TOKENS)]


def block_keys(tokens: list[int], fingerprint: str) -> list[str]:
    """A key for each block: a hash of all tokens up to its end. The last block may be partial."""
    parent, keys = fingerprint.encode(), []
    for at in range(0, len(tokens), BLOCK_TOKENS):
        block = np.array(tokens[at : at + BLOCK_TOKENS], np.uint32).tobytes()
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        keys.append(parent.hex())
    return keys


def decode(model: Model, cache: Floats, first: int, at: int) -> list[int]:
    """Tokens from a position on, the most probable each time."""
    tokens = [first]
    for position in range(at, at + NEW_TOKENS - 1):
        tokens.append(int(model.step(tokens[-1], position, cache).argmax()))
    return tokens


def alone() -> list[int]:
    """Prefill and decode in one process: what must come out."""
    model, cache, logits = Model.of_seed(1), empty_cache(), np.zeros(0, np.float32)
    for at, token in enumerate(prompt()):
        logits = model.step(token, at, cache)
    return decode(model, cache, int(logits.argmax()), PROMPT_TOKENS)


def prefill_worker(address: str, job: str) -> None:
    """Computes the prompt's KV and pushes each block to rank 0, the decode worker's."""
    model, cache, tokens = Model.of_seed(1), empty_cache(), prompt()
    with nkv.connect(address, job=job) as store:
        keys = block_keys(tokens, FINGERPRINT)
        for block, key in enumerate(keys):
            begin = block * BLOCK_TOKENS
            end = min(begin + BLOCK_TOKENS, len(tokens))
            for at in range(begin, end):
                logits = model.step(tokens[at], at, cache)
            # Blocks of all layers lie apart in the cache: one contiguous copy for each.
            store.put(key, np.ascontiguousarray(cache[:, :, begin:end]), preferred_segment=0)
        store.put(keys[-1] + "/next", int(logits.argmax()).to_bytes(4, "little"))


def loaded(store: nkv.NanoKVCache, keys: list[str], cache: Floats) -> int:
    """Reads the blocks that are there; returns how many tokens they hold."""
    tokens = 0
    for key, block in zip(keys, store.get_many(keys), strict=True):
        if block is None:
            print(f"block {key} is missing: prefill goes on from token {tokens}")
            break
        cache[:, :, tokens : tokens + block.shape[2]] = block
        tokens += block.shape[2]
    return tokens


def main() -> int:
    """Runs both workers and compares."""
    expected = alone()
    with nkv.NanoKVCache(64 << 20, job=JOB, port=0, http="off") as store:
        work = multiprocessing.get_context("spawn").Process(
            target=prefill_worker, args=(store.control_address, JOB)
        )
        work.start()
        model, cache, keys = Model.of_seed(1), empty_cache(), block_keys(prompt(), FINGERPRINT)
        # Decode asks before prefill has finished, or begun.
        first = int.from_bytes(store.get_when_ready(keys[-1] + "/next", timeout=60), "little")
        found = len(store.match_prefix(keys))
        tokens = loaded(store, keys, cache)
        print(f"{found} of {len(keys)} blocks cached: {tokens} of {PROMPT_TOKENS} tokens loaded")
        same = decode(model, cache, first, PROMPT_TOKENS) == expected
        print("tokens equal those of one process:", same)
        work.join()

        other = block_keys(prompt(), FINGERPRINT.replace("float32", "float16"))
        missed = not store.match_prefix(other)
        print("another layout's fingerprint finds nothing:", missed)

        cache[:, 1, :BLOCK_TOKENS] *= -1
        differ = decode(model, cache, first, PROMPT_TOKENS) != expected
        print("one block's values flipped give other tokens:", differ)
    return 0 if same and missed and differ and tokens == PROMPT_TOKENS else 1


if __name__ == "__main__":
    sys.exit(main())
