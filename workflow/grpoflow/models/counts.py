"""Parameters by component, and FLOPs per token.

Symbols: H hidden size, q query width, kv key width of a full-attention layer; k, v key and value width of a
GDN layer; nv its value heads; I intermediate size; E experts.
"""

from dataclasses import dataclass

from grpoflow.models.architecture import Architecture, Vision

# --- parameters ---


def gdn_layer(arch: Architecture) -> int:
    """Parameters of one GDN mixer (transformers models/qwen3_5/modeling_qwen3_5.py, Qwen3_5GatedDeltaNet)."""
    hidden, k, v, heads = arch.hidden_size, arch.gdn.key_size, arch.gdn.value_size, arch.gdn.value_heads
    qkv, z, ab = hidden * (2 * k + v), hidden * v, 2 * hidden * heads
    conv, decay, norm, out = (
        arch.gdn.conv_kernel * (2 * k + v),
        2 * heads,
        arch.gdn.value_head_dim,
        v * hidden,
    )
    return qkv + z + ab + conv + decay + norm + out


def attention_layer(arch: Architecture) -> int:
    """Parameters of one full-attention mixer: the query projection also makes the output gate; QK norms
    included."""
    hidden, q, kv = arch.hidden_size, arch.query_size, arch.kv_size
    return hidden * 2 * q + 2 * hidden * kv + q * hidden + 2 * arch.head_dim


def mlp_layer(arch: Architecture) -> int:
    """Parameters of one dense SwiGLU MLP; 0 in a mixture of experts."""
    return 0 if arch.intermediate_size is None else 3 * arch.hidden_size * arch.intermediate_size


def router_layer(arch: Architecture) -> int:
    """Parameters of one router; 0 in a dense model."""
    return 0 if arch.moe is None else arch.hidden_size * arch.moe.experts


def experts_layer(arch: Architecture) -> int:
    """Parameters of the routed experts of one layer; 0 in a dense model."""
    return 0 if arch.moe is None else arch.moe.experts * 3 * arch.hidden_size * arch.moe.intermediate_size


def shared_expert_layer(arch: Architecture) -> int:
    """Parameters of the shared expert of one layer and of its gate; 0 in a dense model."""
    return (
        0 if arch.moe is None else 3 * arch.hidden_size * arch.moe.shared_intermediate_size + arch.hidden_size
    )


def _mtp(arch: Architecture) -> int:
    """Multi-token prediction: a projection of two concatenated states, three norms, and full-attention
    layers."""
    if arch.mtp_layers == 0:
        return 0
    hidden = arch.hidden_size
    feed_forward = mlp_layer(arch) + router_layer(arch) + experts_layer(arch) + shared_expert_layer(arch)
    return 2 * hidden**2 + 3 * hidden + arch.mtp_layers * (attention_layer(arch) + feed_forward + 2 * hidden)


def _vision_tower(vision: Vision) -> int:
    h, i = vision.hidden_size, vision.intermediate_size
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2 * h + h
    block = 4 * h + (3 * h**2 + 3 * h) + (h**2 + h) + (h * i + i) + (i * h + h)
    return patch + vision.position_embeddings * h + vision.depth * block


def _merger(vision: Vision) -> int:
    h, merged = vision.hidden_size, vision.spatial_merge_size**2 * vision.hidden_size
    return 2 * h + merged**2 + merged + merged * vision.out_hidden_size + vision.out_hidden_size


@dataclass(frozen=True)
class Counts:
    """Parameters by component, over all layers. ``lm_head`` is 0 when it is tied to the embedding."""

    embedding: int
    lm_head: int
    attention: int
    gdn: int
    mlp: int
    router: int
    experts: int
    shared_experts: int
    norms: int
    vision: int
    merger: int
    mtp: int
    active_experts: int

    @property
    def body(self) -> int:
        """Text model without embedding and lm_head."""
        dense = self.attention + self.gdn + self.mlp + self.router + self.shared_experts + self.norms
        return dense + self.experts

    @property
    def text(self) -> int:
        """Text model without multi-token prediction."""
        return self.embedding + self.lm_head + self.body

    @property
    def visual(self) -> int:
        """Vision tower and merger."""
        return self.vision + self.merger

    @property
    def total(self) -> int:
        """All parameters of the checkpoint."""
        return self.text + self.visual + self.mtp

    @property
    def active_body(self) -> int:
        """Parameters of the body that one token passes through."""
        return self.body - self.experts + self.active_experts

    @property
    def active(self) -> int:
        """Like active_body, with embedding and lm_head."""
        return self.active_body + self.embedding + self.lm_head


def count_parameters(arch: Architecture) -> Counts:
    """Parameters by component. The total equals the one in the index of each published Qwen3.5 checkpoint."""
    layers, embedding = arch.layers, arch.vocab_size * arch.hidden_size
    experts = layers * experts_layer(arch)
    return Counts(
        embedding=embedding,
        lm_head=0 if arch.tie_word_embeddings else embedding,
        attention=arch.attention_layers * attention_layer(arch),
        gdn=arch.gdn_layers * gdn_layer(arch),
        mlp=layers * mlp_layer(arch),
        router=layers * router_layer(arch),
        experts=experts,
        shared_experts=layers * shared_expert_layer(arch),
        norms=(2 * layers + 1) * arch.hidden_size,
        vision=0 if arch.vision is None else _vision_tower(arch.vision),
        merger=0 if arch.vision is None else _merger(arch.vision),
        mtp=_mtp(arch),
        active_experts=0 if arch.moe is None else experts // arch.moe.experts * arch.moe.experts_per_token,
    )


# --- FLOPs ---


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of the text model for one token.

    Attributes:
        body: Independent of the length.
        logits: The output layer, once per prediction depth.
        attention_core: Per token and token of context, causal halving included: a sequence of s tokens costs
            ``attention_core * s`` per token in the full-attention layers.
    """

    body: int
    logits: int
    attention_core: int

    def forward(self, length: int) -> int:
        """FLOPs of one token in a document of ``length`` tokens."""
        return self.body + self.logits + self.attention_core * length

    def train(self, length: int, *, full_recompute: bool = False, frozen: bool = False) -> int:
        """Forward and backward: a backward is two forwards, one for the inputs and one for the weights, which
        frozen weights under an adapter do not need. Full recomputation adds a forward."""
        return self.forward(length) * ((2 if frozen else 3) + (1 if full_recompute else 0))

    def decode(self, context: int) -> int:
        """FLOPs of one generated token that attends to ``context`` tokens: no causal halving."""
        return self.body + self.logits + 2 * self.attention_core * context


def flops_per_token(arch: Architecture, *, mtp: bool = False) -> Flops:
    """Forward FLOPs per token; 2 per multiply-add; the vision tower is not included.

    Formulas of Megatron-LM megatron/training/training.py, num_floating_point_operations: the GDN term
    ``H(2k+2v+2nv) + conv(2k+v) + 4*nv*dv^2 + Hv``, the attention term with output gate, SwiGLU ``3HI``; the
    routers, which it leaves out, are added.
    """
    hidden, q, kv = arch.hidden_size, arch.query_size, arch.kv_size
    gdn = arch.gdn
    gdn_term = (
        hidden * (2 * gdn.key_size + 2 * gdn.value_size + 2 * gdn.value_heads)
        + gdn.conv_kernel * (2 * gdn.key_size + gdn.value_size)
        + 4 * gdn.value_heads * gdn.value_head_dim**2
        + hidden * gdn.value_size
    )
    attention_term = hidden * (3 * q + 2 * kv)
    if arch.moe is None:
        feed_forward = mlp_layer(arch)
    else:
        width = arch.moe.experts_per_token * arch.moe.intermediate_size + arch.moe.shared_intermediate_size
        feed_forward = 3 * hidden * width + router_layer(arch)
    body = arch.gdn_layers * gdn_term + arch.attention_layers * attention_term + arch.layers * feed_forward
    attention_layers, depths = arch.attention_layers, 1
    if mtp:
        body += arch.mtp_layers * (attention_term + feed_forward + 2 * hidden**2)
        attention_layers, depths = attention_layers + arch.mtp_layers, 1 + arch.mtp_layers
    return Flops(
        body=2 * body,
        logits=2 * hidden * arch.vocab_size * depths,
        attention_core=2 * q * attention_layers,
    )
