"""GPU and host memory of every role of a GRPO job, itemised in bytes.

A trainer goes through three phases per rollout: ``rollout`` (it waits for completions, or in colocate mode
generates them), ``sync`` (it sends the new weights to vLLM) and ``update`` (forward, backward, optimizer).
Each item says in which it is held; the peak of a rank is the largest phase.

The static part follows Megatron-LM megatron/training/theoretical_memory_usage.py, extended to experts, to the
gated delta nets that it refuses, to the reference copy of GRPO and to CPU offload.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import count_parameters, experts_layer
from grpoflow.plan.hardware import GIB, Gpu
from grpoflow.plan.kv_cache import KvCache, kv_cache
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.problem import Problem

Phase = Literal["rollout", "sync", "update"]
ALL_PHASES: tuple[Phase, ...] = ("rollout", "sync", "update")

NOT_MODELLED = (
    "token imbalance between experts: the most loaded expert may receive several times the average",
    "dispatch buffers of the expert all-to-all",
    "activations of the vision tower and of image tokens beyond their share of the sequence length",
    "replication of norms, routers and KV heads over the TP ranks: they are counted as split (below 1 %)",
    "fragmentation and the caches of the CUDA allocator beyond the fixed reserve",
    "CUDA graphs of vLLM beyond the fixed workspace",
    "the optimizer's temporary buffers at the step, and the double copy while a checkpoint is written",
)
"""What the estimate leaves out. Treat it as a lower bound, and keep room."""

VLLM_WORKSPACE = 4 * GIB
"""Activations, sampler and CUDA graphs of a vLLM rank [assumption]. Cautious for small models: of 0.3 x
143771 MiB for the 0.8B shape on an H200, 0.44 GiB remained beside 1.53 GiB of weights and 40.15 GiB of KV
cache, and 0.25 GiB in `swift rlhf` (benchmarks/gpu/results/cases/one-colocate.json, one-swift.json: CUDA
graphs, 128 sequences of 1024 tokens)."""

SYNC_BUCKET = 512 * 2**20
"""SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE (swift megatron/trainers/rollout_mixin.py:680)."""

GDN_CHUNK = 64
"""Chunk length of the gated delta rule in flash-linear-attention."""

BF16, FP32 = 2, 4


@dataclass(frozen=True)
class Copies:
    """Bytes of a logit that the loss holds at its peak, over all copies; measured (docs/measurements.md)."""

    bytes: int
    why: str


MEGATRON_SFT = Copies(10, "bf16 output, fp32 copy, exponentials")
"""megatron-core 0.18.0 fusions/fused_cross_entropy.py, tensor_parallel/cross_entropy.py:28."""

MEGATRON_GRPO = Copies(6, "fp32 copy, in which the loss computes, and bf16 output or gradient")
"""The model returns fp32 (megatron-core 0.18.0 transformer/module.py:495), so that cross_entropy.py:28 copies
nothing and works in place. With a rollout.temperature other than 1 another fp32 copy comes on top."""

SWIFT = Copies(14, "bf16 output, fp32 copy, log-softmax and its gradient")
"""accelerate 1.15.0 accelerator.py:1830: the outputs of a model in mixed precision are made fp32."""

SWIFT_UNDER_DEEPSPEED = Copies(4, "bf16 output and gradient")
"""DeepSpeed's models are not wrapped so; log-softmax is taken row by row. Not measured."""


@dataclass(frozen=True)
class Item:
    """``bytes`` held by one rank on ``where`` during ``phases``, and the formula."""

    name: str
    bytes: int
    why: str
    phases: tuple[Phase, ...] = ALL_PHASES
    where: Literal["gpu", "host"] = "gpu"


RESERVE_ITEM = Item("reserve", 4 * GIB, "CUDA context, NCCL buffers, fragmentation [assumption]")


@dataclass(frozen=True)
class RankMemory:
    """The items of one rank of a role; ``role`` names it ("trainer stage 0")."""

    role: str
    items: tuple[Item, ...]

    def gpu(self, phase: Phase) -> int:
        """GPU bytes in a phase."""
        return sum(item.bytes for item in self.items if item.where == "gpu" and phase in item.phases)

    @property
    def peak(self) -> int:
        """GPU bytes of the largest phase."""
        return max(self.gpu(phase) for phase in ALL_PHASES)

    @property
    def peak_phase(self) -> Phase:
        """The phase in which the peak occurs."""
        return max(ALL_PHASES, key=self.gpu)

    @property
    def host(self) -> int:
        """Host bytes of the largest phase."""
        return max(
            sum(item.bytes for item in self.items if item.where == "host" and phase in item.phases)
            for phase in ALL_PHASES
        )


# --- trainer ---


@dataclass(frozen=True)
class TrainerSpec:
    """What the memory of a trainer rank depends on besides model and layout.

    Attributes:
        tokens: Tokens of one micro batch: micro_batch_size * (max_length + max_completion_length), all
            samples at full length.
        logit_tokens: Tokens of a micro batch of which logits are made; None means all. `swift rlhf` makes
            those of the completions only (swift rlhf_trainers/grpo_trainer.py:1575).
        micro_batches: Micro batches per step and data-parallel group; they fill the pipeline.
        tuner: ``full`` or ``lora``.
        lora_rank: Rank of the adapters on all linear layers of the text model.
        freeze_vit, freeze_aligner: Keep vision tower or merger frozen; both are the default of
            Megatron-SWIFT.
        trains_mtp: Whether the multi-token-prediction layer is built (--mtp_num_layers).
        reference_model: Whether a frozen copy is held. Full-parameter Megatron GRPO always builds one, also
            with beta 0 (swift megatron/trainers/rlhf_mixin.py:31); LoRA switches its adapter off instead.
        recompute: --recompute_granularity.
        weight_bytes: Width of the weights; what a layer keeps inside is counted in bf16 all the same.
        distributed_optimizer: Shard the optimizer over the data-parallel ranks.
        optimizer_offload: Share of the optimizer kept in host memory, 0 to 1.
        grad_bytes, main_param_bytes, exp_avg_bytes, exp_avg_sq_bytes: Widths of the gradients and optimizer
            states; others than 4 need --use_precision_aware_optimizer.
        syncs: Whether the rank sends weights to vLLM (GRPO) or not (SFT).
        sync_batches: --move_model_batches: the parts in which `swift rlhf` under ZeRO-3 gathers its model.
    """

    tokens: int
    logit_tokens: int | None = None
    micro_batches: int = 1
    tuner: Literal["full", "lora"] = "full"
    lora_rank: int = 8
    freeze_vit: bool = True
    freeze_aligner: bool = True
    trains_mtp: bool = False
    reference_model: bool = True
    recompute: Literal["none", "selective", "full"] = "selective"
    weight_bytes: int = BF16
    distributed_optimizer: bool = True
    optimizer_offload: float = 0.0
    grad_bytes: int = FP32
    main_param_bytes: int = FP32
    exp_avg_bytes: int = FP32
    exp_avg_sq_bytes: int = FP32
    syncs: bool = True
    sync_batches: int = 1

    @property
    def optimizer_bytes(self) -> int:
        """Bytes per trainable parameter in the optimizer: master weight and two moments."""
        return self.main_param_bytes + self.exp_avg_bytes + self.exp_avg_sq_bytes


@dataclass(frozen=True)
class Shard:
    """Parameters on one rank of a pipeline stage: ``dense`` share the optimizer over DP*CP, ``experts`` over
    EDP."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        return self.dense + self.experts


def stage_parameters(arch: Architecture, layout: LayoutSpec, stage: int, *, mtp: bool = False) -> Shard:
    """All parameters that a rank of a pipeline stage holds.

    Text weights are split by TP, routed experts by ETP*EP; the vision tower is whole on the first stage.
    Layers count as average layers. The last stage holds the output layer, which with tied weights and PP > 1
    is a copy of the embedding.
    """
    counts = count_parameters(arch)
    share = layout.stage_layers(arch.layers, stage) / arch.layers
    expert_split = layout.ep * layout.etp
    dense = share * (counts.body - counts.experts) / layout.tp
    experts = share * counts.experts / expert_split
    first, last = stage == 0, stage == layout.pp - 1
    if first:
        dense += counts.embedding / layout.tp + counts.visual
    if last:
        copied = arch.tie_word_embeddings and layout.pp > 1
        dense += (counts.embedding if copied else counts.lm_head) / layout.tp
        if mtp:
            mtp_experts = arch.mtp_layers * experts_layer(arch)
            dense += (counts.mtp - mtp_experts) / layout.tp
            experts += mtp_experts / expert_split
    return Shard(dense, experts)


def _trainable(arch: Architecture, layout: LayoutSpec, spec: TrainerSpec, stage: int) -> Shard:
    """The part of the stage's parameters that has gradients and optimizer states."""
    if spec.tuner == "lora":
        return _lora_parameters(arch, layout, spec.lora_rank, stage)
    held = stage_parameters(arch, layout, stage, mtp=spec.trains_mtp)
    counts = count_parameters(arch)
    frozen = (counts.vision if spec.freeze_vit else 0) + (counts.merger if spec.freeze_aligner else 0)
    return Shard(held.dense - (frozen if stage == 0 else 0), held.experts)


def _lora_parameters(arch: Architecture, layout: LayoutSpec, rank: int, stage: int) -> Shard:
    """Adapters on every linear layer of the text model: rank * (in + out) each. TP splits the outer side of a
    column-parallel layer and the inner side of a row-parallel one; the other side is replicated."""
    hidden, tp = arch.hidden_size, layout.tp

    def pair(outer: int, split: int) -> float:
        """Column-parallel hidden -> outer and row-parallel inner -> hidden, both split on the wide side."""
        return rank * (hidden + outer / split)

    attention = pair(2 * arch.query_size + 2 * arch.kv_size, tp) + pair(arch.query_size, tp)
    gdn_in = 2 * arch.gdn.key_size + 2 * arch.gdn.value_size + 2 * arch.gdn.value_heads
    gdn = pair(gdn_in, tp) + pair(arch.gdn.value_size, tp)
    width = arch.moe.shared_intermediate_size if arch.moe else arch.intermediate_size or 0
    mlp = pair(2 * width, tp) + pair(width, tp)
    share = layout.stage_layers(arch.layers, stage) / arch.layers
    dense = share * (arch.attention_layers * attention + arch.gdn_layers * gdn + arch.layers * mlp)
    if arch.moe is None:
        return Shard(dense, 0)
    inner = arch.moe.intermediate_size
    expert = pair(2 * inner, layout.etp) + pair(inner, layout.etp)
    return Shard(dense, share * arch.layers * arch.moe.experts / layout.ep * expert)


def _static_items(arch: Architecture, layout: LayoutSpec, spec: TrainerSpec, stage: int) -> list[Item]:
    width = spec.weight_bytes
    held = stage_parameters(arch, layout, stage, mtp=spec.trains_mtp)
    trainable = _trainable(arch, layout, spec, stage)
    dense_shard, expert_shard = (
        (layout.dp_size * layout.cp, layout.edp_size) if spec.distributed_optimizer else (1, 1)
    )
    optimizer = spec.optimizer_bytes * (trainable.dense / dense_shard + trainable.experts / expert_shard)
    offloaded = int(optimizer * spec.optimizer_offload)
    items = [
        Item(
            "weights",
            int(width * held.total),
            f"{width} B x {held.total / 1e9:.2f} B parameters of the stage",
        )
    ]
    if spec.tuner == "lora":
        items.append(
            Item(
                "adapter",
                int(width * trainable.total),
                f"{width} B x {trainable.total / 1e6:.1f} M parameters",
            )
        )
    items += [
        Item(
            "gradients",
            int(spec.grad_bytes * trainable.total),
            f"{spec.grad_bytes} B x {trainable.total / 1e9:.2f} B trainable parameters, one buffer per rank",
        ),
        Item(
            "optimizer",
            int(optimizer) - offloaded,
            f"{spec.optimizer_bytes} B per trainable parameter, over {dense_shard} dense and {expert_shard} "
            "expert shards",
        ),
    ]
    if offloaded:
        why = f"{spec.optimizer_offload:.0%} of the optimizer in pinned host memory"
        items.append(Item("optimizer offload", offloaded, why, where="host"))
    if spec.reference_model and spec.tuner == "full":
        why = "frozen copy, built also with beta 0 (swift megatron/trainers/rlhf_mixin.py:31)"
        items.append(Item("reference", int(width * held.total), why))
    return items


def _layer_bytes(arch: Architecture, layout: LayoutSpec, kind: str, recompute: str) -> float:
    """Bytes per token that one layer keeps for its backward pass, on one rank.

    Counted tensor by tensor for the fused kernels of the released path, in bf16 unless said; the sum plays
    the part of "34 sbh" in Korthikanti et al. 2022 (arXiv 2205.05198), Table 2, which knows neither GQA,
    gates, SwiGLU nor GDN.
    """
    hidden, tp = arch.hidden_size, layout.tp
    sp = tp if layout.sequence_parallel else 1
    if kind == "full_attention":
        q, kv = arch.query_size, arch.kv_size
        norms = 4 * hidden / sp  # input of the norm and of the projection
        # projections; queries and keys again after norm and rotation; core output; gated output
        wide = 2 * (2 * q + 2 * kv) + 2 * (q + kv) + 2 * q + 2 * q
        if recompute == "none":
            wide += FP32 * arch.attention_heads  # log-sum-exp of the core, which selective recomputes
        mixer = norms + wide / tp
    else:
        gdn = arch.gdn
        k, v = gdn.key_size, gdn.value_size
        # gathered over the TP ranks also with SP (mcore_bridge model/modules/gated_delta_net.py)
        norms = 4 * hidden
        projected, convolved = 2 * (2 * k + 2 * v + 2 * gdn.value_heads), 2 * (2 * k + v)
        repeated = 2 * 2 * gdn.value_heads * gdn.key_head_dim  # queries and keys, one per value head
        gates, chunk_matrix = 2 * FP32 * gdn.value_heads, 2 * GDN_CHUNK * gdn.value_heads
        mixer = norms + (projected + convolved + repeated + gates + chunk_matrix + 2 * v + 2 * v) / tp
    feed_forward = 4 * hidden / sp
    if arch.moe is None:
        feed_forward += 2 * 3 * (arch.intermediate_size or 0) / tp
    else:
        moe = arch.moe
        # dispatched input, both halves of the first matrix, their product, output
        routed = moe.experts_per_token * 2 * (2 * hidden + 3 * moe.intermediate_size)
        router = FP32 * moe.experts / sp
        feed_forward += router + (routed + 2 * 3 * moe.shared_intermediate_size) / tp
    return mixer + feed_forward


def chunk_state_bytes(arch: Architecture, layout: LayoutSpec, tokens: int) -> int:
    """fp32 states of one GDN layer in its backward pass: one per chunk of 64 tokens and value head, dk x dv
    each.

    The kernel of flash-linear-attention recomputes them, so that only the layer at work has them. CP splits
    the heads.
    """
    gdn = arch.gdn
    states = tokens / GDN_CHUNK * gdn.value_heads * gdn.key_head_dim * gdn.value_head_dim
    return int(states * FP32 / (layout.tp * layout.cp))


def _activation_items(
    arch: Architecture, layout: LayoutSpec, spec: TrainerSpec, copies: Copies, stage: int
) -> tuple[list[Item], list[Item], list[Item]]:
    """What is kept for the backward pass, what the layer holds whose backward pass runs, and the logits."""
    tokens = spec.tokens / layout.cp
    layers = layout.stage_layers(arch.layers, stage)
    in_flight = min(spec.micro_batches, layout.pp - stage)  # one-forward-one-backward schedule
    kinds = ("full_attention", "linear_attention")
    per_kind = {kind: _layer_bytes(arch, layout, kind, spec.recompute) for kind in kinds}
    average = (
        arch.attention_layers * per_kind[kinds[0]] + arch.gdn_layers * per_kind[kinds[1]]
    ) / arch.layers
    update: tuple[Phase, ...] = ("update",)
    working = []  # of the layer whose backward pass runs
    if spec.recompute == "full":
        sp = layout.tp if layout.sequence_parallel else 1
        kept = layers * in_flight * tokens * spec.weight_bytes * arch.hidden_size / sp
        why = f"input of each of {layers:g} layers x {in_flight} micro batches in flight"
        items = [Item("layer inputs", int(kept), why, update)]
        working.append(
            Item("recomputed layer", int(max(per_kind.values()) * tokens), "the layer at work", update)
        )
    else:
        why = f"{average / 1024:.1f} KiB per token x {layers:g} layers x {in_flight} micro batches in flight"
        items = [Item("activations", int(average * tokens * layers * in_flight), why, update)]
    why = f"states of one GDN layer, every {GDN_CHUNK} tokens, in its backward pass"
    working.append(Item("GDN chunk states", chunk_state_bytes(arch, layout, spec.tokens), why, update))
    return items, working, _loss_items(arch, layout, spec, copies) if stage == layout.pp - 1 else []


def _loss_items(arch: Architecture, layout: LayoutSpec, spec: TrainerSpec, copies: Copies) -> list[Item]:
    tokens = spec.tokens if spec.logit_tokens is None else spec.logit_tokens
    logits = int(tokens / layout.cp * ceil(arch.vocab_size / layout.tp))
    why = f"{copies.bytes} B of each of {arch.vocab_size} per token, split by TP: {copies.why}"
    return [Item("logits", copies.bytes * logits, why, ("update",))]


def _sync_item(arch: Architecture, weight_bytes: int) -> Item:
    gathered = weight_bytes * arch.vocab_size * arch.hidden_size
    why = "a bucket, its flattened copy, and the largest tensor gathered whole (the embedding)"
    return Item("weight sync", 2 * SYNC_BUCKET + gathered, why, ("sync",))


def trainer_memory(arch: Architecture, layout: LayoutSpec, spec: TrainerSpec) -> list[RankMemory]:
    """Memory of one rank of every pipeline stage. ``layout`` must be legal (see check_layout)."""
    ranks = []
    for stage in range(layout.pp):
        copies = MEGATRON_GRPO if spec.syncs else MEGATRON_SFT
        kept, working, logits = _activation_items(arch, layout, spec, copies, stage)
        # The logits are gone before the backward pass reaches a layer: the peak has the larger of the two.
        largest = max(logits, working, key=lambda held: sum(item.bytes for item in held))
        items = [*_static_items(arch, layout, spec, stage), *kept, *largest]
        if spec.syncs:
            items.append(_sync_item(arch, spec.weight_bytes))
        items.append(RESERVE_ITEM)
        ranks.append(RankMemory(f"trainer stage {stage}", tuple(items)))
    return ranks


def swift_trainer_memory(
    arch: Architecture, world_size: int, spec: TrainerSpec, zero_stage: Literal[0, 1, 2, 3]
) -> RankMemory:
    """Memory of one rank of `swift rlhf`, where every rank is its own data-parallel group.

    Under DeepSpeed ZeRO 2 B weights, 2 B gradients (4 B each in float32) and 12 B optimizer per parameter, of
    which stage 1 splits the optimizer, stage 2 the gradients too and stage 3 the weights and the reference
    too (arXiv 1910.02054, Figure 1).
    Stage 0 means no DeepSpeed: the moments are as wide as the weights, and there is no fp32 copy.
    """
    layout = LayoutSpec(world_size)
    held = stage_parameters(arch, layout, 0).total
    trainable = _trainable(arch, layout, spec, 0).total
    weight_split, grad_split, optimizer_split = (
        world_size if zero_stage >= stage else 1 for stage in (3, 2, 1)
    )
    width = spec.weight_bytes
    optimizer_bytes = spec.optimizer_bytes if zero_stage else 2 * width
    items = [
        Item(
            "weights",
            int(width * held / weight_split),
            f"{width} B x {held / 1e9:.2f} B over {weight_split} ranks",
        ),
        Item(
            "gradients",
            int(width * trainable / grad_split),
            f"{width} B per trainable parameter over {grad_split} ranks",
        ),
        Item(
            "optimizer",
            int(optimizer_bytes * trainable / optimizer_split),
            f"{optimizer_bytes} B per trainable parameter over {optimizer_split} ranks",
        ),
    ]
    if spec.reference_model and spec.tuner == "full":
        items.append(Item("reference", int(width * held / weight_split), "frozen copy, only with beta > 0"))
    # logits and layer together: a run that this puts at 67 GiB was seen at 78 of 80 GB (ms-swift#8145)
    copies = SWIFT_UNDER_DEEPSPEED if zero_stage else SWIFT
    items += itertools.chain(*_activation_items(arch, layout, spec, copies, 0))
    if spec.syncs:
        items.append(_sync_item(arch, spec.weight_bytes))
        if zero_stage == 3 and world_size > 1:
            items.append(_gathered_item(arch, held, spec))
    items.append(RESERVE_ITEM)
    return RankMemory("trainer", tuple(items))


def _gathered_item(arch: Architecture, held: float, spec: TrainerSpec) -> Item:
    """ZeRO-3 gathers a whole batch of parameters on every GPU before it is sent: all of them, unless
    --move_model_batches splits the layers (swift 4.6.0 rlhf_trainers/rollout_mixin.py:564-640)."""
    counts, batches, width = count_parameters(arch), spec.sync_batches, spec.weight_bytes
    parts = (counts.body / batches, counts.visual, held - counts.body - counts.visual)
    gathered = held if batches == 1 else max(parts)
    why = f"{width} B x {gathered / 1e9:.2f} B whole on every GPU, --move_model_batches {batches}"
    return Item("gathered for the sync", int(width * gathered), why, ("sync",))


# --- vLLM ---


@dataclass(frozen=True)
class VllmSpec:
    """One vLLM engine.

    Attributes:
        tp: Tensor-parallel size.
        gpu_memory_utilization: Share of the GPU that the engine takes.
        max_num_seqs: Sequences that run at once, if the KV cache holds them.
        max_model_len: Longest prompt and completion, in tokens.
        kv_cache_memory: Bytes of the KV cache where they are given (kv_cache_memory_bytes): the engine then
            does not look at gpu_memory_utilization (vLLM 0.23.0 v1/worker/gpu_worker.py:384).
        prefix_caching: Whether blocks of a prompt are kept for the next sequence that begins like it.
        enforce_eager: No CUDA graphs.
    """

    tp: int = 1
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_model_len: int = 8192
    kv_cache_memory: int | None = None
    prefix_caching: bool = True
    enforce_eager: bool = False


def vllm_weight_bytes(arch: Architecture, tp: int) -> int:
    """bf16 text and vision weights per rank; vLLM loads no multi-token prediction for a rollout."""
    counts = count_parameters(arch)
    return BF16 * (counts.text + counts.visual) // tp


@dataclass(frozen=True)
class VllmMemory:
    """Memory of one rank of a vLLM engine, and what it can hold.

    Attributes:
        rank: The items; KV cache and GDN states share what remains of the budget.
        kv_tokens: What vLLM reports as `GPU KV cache size`.
        concurrency: Sequences of max_model_len that fit at once; those beyond wait or are computed again.
        max_num_seqs: Largest max_num_seqs with which the engine starts.
        problems: What does not fit.
    """

    rank: RankMemory
    kv_tokens: int
    concurrency: float
    max_num_seqs: int
    problems: tuple[Problem, ...]


def _pool_bytes(arch: Architecture, spec: VllmSpec, gpu: Gpu) -> int:
    """What was given, or remains of the budget beside weights and workspace: below 0 where they exceed it."""
    if spec.kv_cache_memory is not None:
        return spec.kv_cache_memory
    return int(spec.gpu_memory_utilization * gpu.memory) - vllm_weight_bytes(arch, spec.tp) - VLLM_WORKSPACE


def engine_cache(arch: Architecture, spec: VllmSpec, gpu: Gpu) -> KvCache:
    """The pool of the engine."""
    return kv_cache(arch, spec.tp, _pool_bytes(arch, spec, gpu), prefix_caching=spec.prefix_caching)


def vllm_memory(arch: Architecture, spec: VllmSpec, gpu: Gpu) -> VllmMemory:
    """Split the budget of a vLLM rank: weights, workspace, and the pool of GDN states and KV cache."""
    weights, cache = vllm_weight_bytes(arch, spec.tp), engine_cache(arch, spec, gpu)
    pool = max(0, _pool_bytes(arch, spec, gpu))
    concurrency = cache.concurrency(spec.max_model_len)
    running = min(spec.max_num_seqs, int(concurrency))
    states = running * cache.state_bytes
    during: tuple[Phase, ...] = ("rollout",)
    rest = (
        f"rest of {spec.gpu_memory_utilization:.0%} of the GPU"
        if spec.kv_cache_memory is None
        else "rest of kv_cache_memory_bytes"
    )
    items = (
        Item("vLLM weights", weights, f"bf16 text and vision / TP {spec.tp}", ("rollout", "sync")),
        Item("vLLM workspace", VLLM_WORKSPACE, "activations, sampler, CUDA graphs [assumption]", during),
        Item("GDN states", states, f"{running} x {cache.state_bytes / 2**20:.1f} MiB", during),
        Item("KV cache", pool - states, rest, during),
    )
    return VllmMemory(
        rank=RankMemory("rollout", items),
        kv_tokens=cache.tokens(spec.max_model_len),
        concurrency=concurrency,
        max_num_seqs=cache.blocks,
        problems=tuple(_vllm_problems(arch, spec, gpu, cache)),
    )


def _vllm_problems(arch: Architecture, spec: VllmSpec, gpu: Gpu, cache: KvCache) -> Iterable[Problem]:
    """What vLLM refuses when it starts; sequences that do not fit at once only wait."""
    given = spec.kv_cache_memory
    share = spec.gpu_memory_utilization if given is None else 1.0
    weights, needed = vllm_weight_bytes(arch, spec.tp), cache.blocks_of(spec.max_model_len)
    room, one = int(share * gpu.memory) - weights - VLLM_WORKSPACE, needed * cache.block_bytes
    beside = f"weights of {weights / GIB:.1f} GiB, {VLLM_WORKSPACE / GIB:.0f} GiB workspace"
    sequence = f"{one / GIB:.1f} GiB of KV cache for one sequence of {spec.max_model_len} tokens"
    the_gpu = f"{gpu.memory / GIB:.1f} GiB of the {gpu.name}"
    if room < one:  # vLLM 0.23.0 v1/core/kv_cache_utils.py:719-744
        whole = replace(spec, kv_cache_memory=None, gpu_memory_utilization=share)
        legal = tuple(
            tp
            for tp in (1, 2, 4, 8, 16)
            if arch.attention_heads % tp == 0
            and engine_cache(arch, replace(whole, tp=tp), gpu).concurrency(spec.max_model_len) >= 1
        )
        why = f"{beside} and {sequence} exceed {share:.2f} x {the_gpu}"
        yield Problem("vllm_weights_fit", "vllm_tensor_parallel_size", spec.tp, why, legal[:2])
    elif given is not None and not one <= given <= room:
        why = f"it holds less than {sequence}" if given < one else f"with {beside} it exceeds {the_gpu}"
        legal = (min(max(given, one), room),)
        yield Problem("vllm_weights_fit", "kv_cache_memory_bytes", given, why, legal)
    elif cache.blocks < spec.max_num_seqs and not spec.enforce_eager:
        # vLLM 0.23.0 config/compilation.py:1452-1468
        why = (
            f"with CUDA graphs sequences need a block of the KV cache each, and {cache.blocks} blocks of "
            f"{cache.block_bytes / 2**20:.0f} MiB fit beside the weights (vllm#49064)"
        )
        yield Problem("vllm_states_fit", "vllm_max_num_seqs", spec.max_num_seqs, why, (cache.blocks,))


# --- colocate ---


@dataclass(frozen=True)
class ColocateSpec:
    """How trainer and vLLM share a GPU (--sleep_level, --offload_model, --offload_optimizer)."""

    sleep_level: Literal[0, 1, 2] = 0
    offload_model: bool = False
    offload_optimizer: bool = False


def colocated_memory(trainer: RankMemory, vllm: VllmMemory, spec: ColocateSpec) -> RankMemory:
    """One rank with both roles.

    A sleeping engine gives its memory back except during the rollout, and its weights except during rollout
    and sync; level 1 keeps them in host memory. During the rollout offload_model moves weights and reference
    to the host and frees the gradients (swift megatron/trainers/utils.py:98), offload_optimizer moves the
    optimizer.
    """
    items: list[Item] = []
    awake: tuple[Phase, ...] = ("sync", "update")
    moved = {"weights", "adapter", "reference"} if spec.offload_model else set()
    freed = {"gradients"} if spec.offload_model else set()
    if spec.offload_optimizer:
        moved.add("optimizer")
    for item in trainer.items:
        if item.where == "gpu" and item.name in moved | freed:
            items.append(Item(item.name, item.bytes, item.why, awake))
            if item.name in moved:
                why = "pinned host copy, kept once it was made"
                items.append(Item(f"{item.name} offload", item.bytes, why, ALL_PHASES, "host"))
        else:
            items.append(item)
    for item in vllm.rank.items:
        if spec.sleep_level == 0:
            items.append(Item(item.name, item.bytes, item.why, ALL_PHASES))
            continue
        items.append(item)
        if item.name == "vLLM weights" and spec.sleep_level == 1:
            items.append(
                Item("vLLM weights asleep", item.bytes, "host copy of sleep level 1", ("update",), "host")
            )
    return RankMemory(f"{trainer.role} with vLLM", tuple(items))


def host_bytes_per_node(ranks: Iterable[RankMemory], ranks_per_node: int) -> int:
    """Pinned host memory of a node whose ranks all belong to the stage that needs most."""
    return ranks_per_node * max((rank.host for rank in ranks), default=0)
