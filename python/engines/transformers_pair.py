"""Prefill in one process and decode in another with a Llama of transformers, over nkv alone.

transformers_pair.py producer|consumer FOLDER

The producer prefills a prompt and puts each block's KV under a hash of the tokens up to its end.
The consumer finds the longest cached prefix, rebuilds the cache from it and decodes. Tokens and
bytes must be those of the same split in one process; so must what has to fail.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import beside
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import nkv

PROMPT_TOKENS, NEW_TOKENS, BLOCK_TOKENS = 100, 32, 16
LAYERS, KV_HEADS, HEAD_DIM = 4, 2, 16
#: What two processes must share for a block of one to be of use to the other.
FINGERPRINT = f"tiny L{LAYERS} H{KV_HEADS} D{HEAD_DIM} B{BLOCK_TOKENS} float32"
FIRST = "first token"
PREFILL_S = 120.0

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def model() -> LlamaForCausalLM:
    """Random weights, the same in every process."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        attn_implementation="eager",
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def prompt() -> list[int]:
    """The prompt's tokens."""
    return [3 + (7 * i * i + 11 * i) % 500 for i in range(PROMPT_TOKENS)]


def block_keys(tokens: list[int], fingerprint: str = FINGERPRINT) -> list[str]:
    """A key for each block, the last of which may be partial."""
    parent, keys = fingerprint.encode(), []
    for at in range(0, len(tokens), BLOCK_TOKENS):
        block = repr(tokens[at : at + BLOCK_TOKENS]).encode()
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        keys.append(parent.hex())
    return keys


@torch.no_grad()
def prefill(llama: LlamaForCausalLM) -> tuple[Pairs, int]:
    """Keys and values of each layer, [1, KV_HEADS, PROMPT_TOKENS, HEAD_DIM], and the next token."""
    ids = torch.tensor([prompt()])
    done = llama(input_ids=ids, use_cache=True, logits_to_keep=1)
    pairs = [(layer.keys, layer.values) for layer in done.past_key_values.layers]
    return pairs, int(done.logits[0, -1].argmax())


@torch.no_grad()
def decode(llama: LlamaForCausalLM, pairs: Pairs, first: int) -> list[int]:
    """The most probable tokens after a prefix."""
    copies = [(keys.clone(), values.clone()) for keys, values in pairs]
    cache: Any = DynamicCache(ddp_cache_data=copies, config=llama.config)
    tokens = [first]
    for _ in range(NEW_TOKENS - 1):
        ids = torch.tensor([tokens[-1:]])
        done = llama(input_ids=ids, past_key_values=cache, use_cache=True)
        tokens.append(int(done.logits[0, -1].argmax()))
    return tokens


def blocks(pairs: Pairs) -> list[torch.Tensor]:
    """[LAYERS, 2, tokens, KV_HEADS, HEAD_DIM] of each block."""
    whole = torch.stack([torch.stack([keys[0], values[0]]) for keys, values in pairs])
    whole = whole.transpose(2, 3).contiguous()
    return [part.contiguous() for part in whole.split(BLOCK_TOKENS, dim=2)]


def joined(parts: list[torch.Tensor]) -> Pairs:
    """The opposite."""
    whole = torch.cat(parts, dim=2).transpose(2, 3)
    return [(layer[0][None].contiguous(), layer[1][None].contiguous()) for layer in whole]


def producer() -> None:
    """Prefills, and puts every block."""
    with nkv.connect(beside.ADDRESS, job=beside.JOB) as cache:
        pairs, first = prefill(model())
        cache.put_many(zip(block_keys(prompt()), blocks(pairs), strict=True))
        cache.put(FIRST, first.to_bytes(4, "little"))


def load(cache: nkv.NanoKVCache, keys: list[str]) -> list[torch.Tensor]:
    """The blocks that are there, up to the first that is not."""
    found = len(cache.match_prefix(keys))
    return [block for block in cache.get_many(keys[:found], library="torch")]


def consumer() -> None:
    """Decodes from what the producer has put, and compares."""
    llama, keys = model(), block_keys(prompt())
    pairs, first = prefill(llama)
    expected = decode(llama, pairs, first)
    rank = beside.Rank()
    with nkv.connect(beside.ADDRESS, job=beside.JOB) as cache:
        told = int.from_bytes(cache.get_when_ready(FIRST, PREFILL_S, library="bytes"), "little")
        before = rank.settled()
        parts = load(cache, keys)
        tokens = sum(part.shape[2] for part in parts)
        beside.figures(tokens, rank.settled() - before)
        same = all(torch.equal(a, b) for a, b in zip(parts, blocks(pairs), strict=True))
        beside.check("transformers: bytes equal those of one process", same, f"{tokens} tokens")
        loaded = decode(llama, joined(parts), told)
        beside.check("transformers: tokens equal", loaded == expected, f"{len(loaded)} tokens")

        other = block_keys(prompt(), FINGERPRINT.replace("float32", "float16"))
        beside.check("transformers: another layout finds nothing", not load(cache, other))
        parts[0] = -parts[0]
        differ = decode(llama, joined(parts), told) != expected
        beside.check("transformers: a block of other signs gives other tokens", differ)
        cache.remove(keys[2])
        beside.check("transformers: a removed block ends the prefix", len(load(cache, keys)) == 2)


if __name__ == "__main__":
    beside.run({"producer": producer, "consumer": consumer}[sys.argv[1]])
