"""The KV cache of vLLM 0.23.0 for a model of full attention and gated delta nets (GDN).

All layers share one pool of blocks, so a state of a GDN costs as much as a block of keys and values:

- A page is what one layer holds in a block: the keys and values of so many tokens that a state fits into it
  (platforms/interface.py:663-666). States are padded to it (:682-690).
- Layers of a kind are put in groups of equal size, and a block is a page of each layer of a group
  (v1/core/kv_cache_utils.py:1158-1179, 1309-1317).
- A sequence holds as many blocks as its tokens fill of each attention group, and of each GDN group one, its
  running state; with prefix caching a second, the state at the last full block
  (v1/kv_cache_interface.py:633).

Counted so it gives the numbers of vLLM's own log (v1/core/kv_cache_utils.py:899-917, 1720-1749), as seen on
an H200 (benchmarks/gpu/results/cases/one-colocate.json).
"""

from dataclasses import dataclass
from math import ceil

from grpoflow.models.architecture import Architecture

KV_BYTES, STATE_BYTES = 2, 4
"""bf16 keys, values and windows; fp32 states, as mamba_ssm_dtype of Qwen3.5 says
(model_executor/models/config.py:536-549)."""

BLOCK_ALIGNMENT = 16
"""An attention block has a multiple of this many tokens: vLLM's default and the least of FlashAttention
(platforms/interface.py:641-647, v1/attention/backends/flash_attn.py:77-92)."""


@dataclass(frozen=True)
class KvCache:
    """The pool of one engine; every rank holds its share of each block.

    Attributes:
        block_tokens: Tokens in a block of an attention group.
        block_bytes: Bytes of a block on one rank.
        attention_groups: Groups of full-attention layers.
        gdn_groups: Groups of GDN layers.
        blocks: Blocks in the pool.
        states: Blocks that a sequence holds of each GDN group.
    """

    block_tokens: int
    block_bytes: int
    attention_groups: int
    gdn_groups: int
    blocks: int
    states: int

    @property
    def state_bytes(self) -> int:
        """What a running sequence holds on one rank, however short it is."""
        return self.states * self.gdn_groups * self.block_bytes

    def blocks_of(self, tokens: float) -> int:
        """Blocks that one sequence of so many tokens holds."""
        return self.attention_groups * ceil(tokens / self.block_tokens) + self.states * self.gdn_groups

    def concurrency(self, tokens: float) -> float:
        """Sequences of so many tokens that fit at once: vLLM's `Maximum concurrency`, for max_model_len."""
        return self.blocks / self.blocks_of(tokens)

    def tokens(self, max_model_len: int) -> int:
        """vLLM's `GPU KV cache size`: the tokens of as many sequences of max_model_len."""
        return int(self.concurrency(max_model_len) * max_model_len)


def kv_bytes_per_token(arch: Architecture, tp: int) -> int:
    """Keys and values of one token in the full-attention layers; KV heads are replicated when there are fewer
    than TP."""
    return 2 * arch.head_dim * KV_BYTES * arch.attention_layers * arch.kv_heads // min(tp, arch.kv_heads)


def gdn_state_bytes(arch: Architecture, tp: int) -> int:
    """One state of one sequence: a matrix per value head and the window of the convolution, per GDN layer."""
    gdn = arch.gdn
    state = gdn.value_heads * gdn.key_head_dim * gdn.value_head_dim * STATE_BYTES
    window = (2 * gdn.key_size + gdn.value_size) * (gdn.conv_kernel - 1) * KV_BYTES
    return arch.gdn_layers * (state + window) // tp


def kv_cache(arch: Architecture, tp: int, memory: int, *, prefix_caching: bool = True) -> KvCache:
    """The pool that fits into ``memory`` bytes of each of ``tp`` ranks (`Available KV cache memory`)."""
    token = kv_bytes_per_token(arch, tp) // arch.attention_layers
    state = gdn_state_bytes(arch, tp) // arch.gdn_layers
    block_tokens = BLOCK_ALIGNMENT * max(1, ceil(state / (BLOCK_ALIGNMENT * token)))
    few, many = sorted((arch.attention_layers, arch.gdn_layers))
    layers = many if many < 1.5 * few else few
    block_bytes = layers * block_tokens * token
    return KvCache(
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        attention_groups=ceil(arch.attention_layers / layers),
        gdn_groups=ceil(arch.gdn_layers / layers),
        blocks=max(0, memory // block_bytes),
        states=2 if prefix_caching else 1,
    )
