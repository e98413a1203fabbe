"""A tiny Llama with random weights, in the files that engines load."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, WIDTH, VOCABULARY, INNER = 4, 256, 1024, 512
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_DIM * 4

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def write(folder: Path) -> Path:
    """Makes the model's folder; the same weights each time."""
    model = folder / "tiny-llama"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    save_file(_weights(), model / "model.safetensors", metadata={"format": "pt"})
    return model


def _weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)

    def random(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns) * scale * columns**-0.5

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, WIDTH),
        "lm_head.weight": random(VOCABULARY, WIDTH, 3),
        "model.norm.weight": torch.ones(WIDTH),
    }
    # Attention counts as much as the token itself: else the cache would not matter.
    kv = KV_HEADS * HEAD_DIM
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        weights |= {
            f"{name}self_attn.q_proj.weight": random(HEADS * HEAD_DIM, WIDTH, 2),
            f"{name}self_attn.k_proj.weight": random(kv, WIDTH, 2),
            f"{name}self_attn.v_proj.weight": random(kv, WIDTH, 2),
            f"{name}self_attn.o_proj.weight": random(WIDTH, HEADS * HEAD_DIM, 2),
            f"{name}mlp.gate_proj.weight": random(INNER, WIDTH),
            f"{name}mlp.up_proj.weight": random(INNER, WIDTH),
            f"{name}mlp.down_proj.weight": random(WIDTH, INNER),
            f"{name}input_layernorm.weight": torch.ones(WIDTH),
            f"{name}post_attention_layernorm.weight": torch.ones(WIDTH),
        }
    return weights
