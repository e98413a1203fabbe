"""vLLM with its own MooncakeStoreConnector: one process prefills, another loads and decodes.

    vllm_pair.py producer|consumer FOLDER

Both start at once; the consumer waits in FOLDER for the producer's tokens. The model is a tiny
Llama with random weights, made on the spot. float32: with fewer bits the most probable token could
change with the order of additions, which differs between a whole prefill and its last tokens.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import beside
import tiny_llama
import torch
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from nkv.mooncake import MooncakeDistributedStore

# The CPU's attention takes no smaller blocks.
BLOCK, PROMPT, NEW = 32, 300, 24
LOADED = PROMPT // BLOCK * BLOCK
BLOCKS = PROMPT // BLOCK
BYTES = LOADED * tiny_llama.BYTES_PER_TOKEN
#: Mooncake's code for a value that fails its check.
CHECKSUM_MISMATCH = -801
#: The block that is damaged.
DAMAGED = 4
OTHER_S = 120


#: What the connector reads at MOONCAKE_CONFIG_PATH.
MOONCAKE = {
    "mode": "standalone-store",
    "global_segment_size": 0,
    "local_buffer_size": "64MB",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": beside.ADDRESS,
    "protocol": "tcp",
    "device_name": "",
}


class NoEvent:
    """In torch.cuda.Event's place, by which the connector waits for a GPU: there is none here."""

    def record(self, *_: Any) -> None:
        """There is nothing to record."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Answers:
    """nkv's answers to reads, which a check may falsify on their way to the connector."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.falsify: Callable[[list[int], Sequence[Any], Sequence[Any]], None] | None = None
        read = MooncakeDistributedStore.batch_get_into_multi_buffers

        def answer(store: Any, keys: Any, places: Any, sizes: Any, *more: Any) -> list[int]:
            self.keys = list(keys)
            answers = read(store, keys, places, sizes, *more)
            if self.falsify is not None:
                self.falsify(answers, places, sizes)
            return answers

        MooncakeDistributedStore.batch_get_into_multi_buffers = answer


def wrong(_: list[int], places: Sequence[Any], sizes: Sequence[Any]) -> None:
    """Flips a bit of every number of one value."""
    for at, size in zip(places[DAMAGED], sizes[DAMAGED], strict=True):
        ctypes.memmove(at, beside.flipped(ctypes.string_at(at, size)), size)


def found_wrong(answers: list[int], places: Sequence[Any], sizes: Sequence[Any]) -> None:
    """The same, and the answer says so."""
    wrong(answers, places, sizes)
    answers[DAMAGED] = CHECKSUM_MISMATCH


class Engine:
    """vLLM with the tiny model."""

    def __init__(self, folder: Path) -> None:
        model = tiny_llama.write(folder)
        config = folder / "mooncake.json"
        config.write_text(json.dumps(MOONCAKE))
        os.environ["MOONCAKE_CONFIG_PATH"] = str(config)
        # The default policy fails a request of which a block could not be loaded.
        transfer = KVTransferConfig(
            kv_connector="MooncakeStoreConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"load_async": True},
        )
        self._llm = LLM(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=512,
            block_size=BLOCK,
            max_num_seqs=4,
            kv_transfer_config=transfer,
        )

    def tokens(self, prompt: list[int], new: int) -> tuple[list[int], int]:
        """The tokens after a prompt, and how many of the prompt's were not computed."""
        greedy = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        done = self._llm.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)[0]
        return list(done.outputs[0].token_ids), done.num_cached_tokens or 0

    def afresh(self) -> tuple[list[int], int]:
        """The same for the prompt, without what this process remembers of it."""
        assert self._llm.reset_prefix_cache()
        return self.tokens(PROMPT_TOKENS, NEW)


PROMPT_TOKENS = [3 + (7 * i * i + 11 * i) % 1000 for i in range(PROMPT)]


def producer(folder: Path) -> None:
    """Prefills and stores, without anything to load."""
    engine, rank = Engine(folder / "producer"), beside.Rank()
    tokens, cached = engine.tokens(PROMPT_TOKENS, NEW)
    # Blocks go out in the steps after the one that filled them.
    engine.tokens([5] * 8, 8)
    stored = beside.until(lambda: len(rank.keys()) >= BLOCKS, beside.REPORTED_S)
    beside.check("vllm: the producer found nothing", cached == 0, f"{cached} tokens")
    beside.check("vllm: the producer stored its blocks", stored, f"{len(rank.keys())} keys")
    (folder / "new").write_text(json.dumps(tokens))
    (folder / "new").rename(folder / "tokens.json")


def consumer(folder: Path) -> None:
    """Loads what the producer stored, then what is falsified and damaged."""
    answers, engine, rank = Answers(), Engine(folder / "consumer"), beside.Rank()
    file = folder / "tokens.json"
    assert beside.until(file.exists, OTHER_S), "the producer's tokens did not come"
    reference = json.loads(file.read_text())

    before = rank.settled()
    tokens, cached = engine.afresh()
    served = rank.settled(before + BYTES) - before
    beside.check(
        "vllm: equal tokens", tokens == reference and cached >= 256, f"{cached} tokens loaded"
    )
    beside.check_served("vllm", served, BYTES)
    beside.figures(cached, served)

    answers.falsify = wrong
    tokens, _ = engine.afresh()
    beside.check("vllm: a block that is falsified gives other tokens", tokens != reference)
    answers.falsify = found_wrong
    tokens, _ = engine.afresh()
    beside.check("vllm: the same block with answer -801 is computed", tokens == reference)
    answers.falsify = None
    damages(engine, rank, answers.keys[DAMAGED], reference)


def damages(engine: Engine, rank: beside.Rank, key: str, reference: list[int]) -> None:
    """Damages a block in nkv's memory, and loads it."""
    rank.damage_payload(key)
    tokens, cached = engine.afresh()
    beside.check("vllm: a damaged payload is a miss", tokens == reference, f"{cached} tokens")
    before = rank.settled()
    rank.damage_header(key)
    tokens, _ = engine.afresh()
    others = BYTES - BYTES // BLOCKS
    served = rank.settled(before + others) - before
    beside.check(
        "vllm: a damaged header is a miss",
        tokens == reference and others <= served <= others * 1.01,
        f"{served} bytes served by nkv",
    )


def main() -> None:
    """One of the two."""
    torch.cuda.Event = NoEvent
    role = {"producer": producer, "consumer": consumer}[sys.argv[1]]
    role(Path(sys.argv[2]))


if __name__ == "__main__":
    beside.run(main)
