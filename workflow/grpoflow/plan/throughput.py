"""Time of a GRPO step, split into rollout, log-probabilities, update and weight sync, and GPU-hours.

An estimate from rates that nobody can know before the run: every rate is a field of :class:`Assumptions`, and
every phase says which it used. It ranks layouts and sizes an allocation; it does not predict a clock.
"""

import math
from dataclasses import dataclass

from grpoflow.models.architecture import Architecture
from grpoflow.models.counts import count_parameters, flops_per_token
from grpoflow.plan.batch import Batch
from grpoflow.plan.hardware import Gpu
from grpoflow.plan.kv_cache import gdn_state_bytes, kv_bytes_per_token
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import BF16, VllmSpec, engine_cache


@dataclass(frozen=True)
class Assumptions:
    """Rates and shares that are assumed; each default says where it comes from.

    Attributes:
        dense_mfu: Share of the BF16 peak that the matrices of a dense model reach. 35-45 % is usual on
            Ampere; the matmul ceiling of an A100 is 87 % of its peak.
        moe_mfu: The same for a mixture of experts, whose matrices are small. 15-30 % is usual.
        forward_mfu_gain: Forward-only passes reach this multiple of the training rate.
        tp_doubling, cp_doubling, pp_doubling: What is left of the speed at each doubling, beside the
            collectives that are
            counted: TP narrows the matrices, CP shortens the sequences of each rank and pads every sample,
            and in a pipeline micro batches of different lengths wait for each other.
        layer_overhead: Seconds that one layer takes at least, in each of the three passes of forward and
            backward, however small it is: Python launches its kernels one by one. Measured: the update of the
            0.8B shape, 24 layers in 32 micro batches of 4096 tokens, on an H200 that nothing else used:
            6.2 s with Megatron, which is the value, 5.2 s with `swift rlhf` (docs/measurements.md,
            one-colocate and one-swift).
        decode_bandwidth: Share of the memory bandwidth that decoding reaches.
        decode_step_overhead: Seconds per decoding step for scheduling and sampling.
        colocate_step: Seconds that Python takes for a decoding step of an engine inside the trainer,
            while the GPU computes (vLLM schedules asynchronously). Measured, with that overhead: 128
            completions of 512 tokens in 14.7 s inside Megatron and 13.0 s inside `swift rlhf`, the 0.8B shape
            on an H200 with CUDA graphs (one-colocate, one-swift). Of a rollout server it is not measured.
        link_efficiency: Share of a link's one-way bandwidth that a collective reaches.
        network_bandwidth: Bytes per second and GPU, one way, between nodes: one 200 Gbit/s adapter per GPU.
        network_doubling: What is left of it at each doubling of the nodes that a collective spans.
        sync_bandwidth: Bytes per second at which full weights are gathered and broadcast to one server.
        sync_overhead: Seconds per sync for the requests and the processing of the loaded weights.
        copy_bandwidth: Bytes per second of a sync in colocate mode where no weights have to be gathered.
            Measured: 0.04 s for the 0.8B shape on an H200 (one-colocate).
        longest_over_mean: Longest completion of a batch over the mean one: the tail that keeps servers
            waiting.
    """

    dense_mfu: float = 0.40
    moe_mfu: float = 0.20
    forward_mfu_gain: float = 1.1
    tp_doubling: float = 0.97
    cp_doubling: float = 0.90
    pp_doubling: float = 0.95
    layer_overhead: float = 2.7e-3
    decode_bandwidth: float = 0.6
    decode_step_overhead: float = 0.004
    colocate_step: float = 0.023
    link_efficiency: float = 0.7
    network_bandwidth: float = 25e9
    network_doubling: float = 0.8
    sync_bandwidth: float = 5e9
    sync_overhead: float = 5.0
    copy_bandwidth: float = 40e9
    longest_over_mean: float = 2.0


DEFAULT_ASSUMPTIONS = Assumptions()


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens. ``mean_completion`` is over all completions; none exceeds ``max_completion``."""

    mean_prompt: float
    mean_completion: float
    max_completion: int

    @property
    def mean_length(self) -> float:
        """Mean of prompt and completion together."""
        return self.mean_prompt + self.mean_completion


@dataclass(frozen=True)
class PhaseTime:
    """Seconds of one phase of one rollout cycle, and the assumption behind them."""

    name: str
    seconds: float
    assumption: str


@dataclass(frozen=True)
class StepTime:
    """One cycle: a rollout, a sync, and the optimizer steps made from it.

    Attributes:
        phases: In order; a phase that the run does not have is absent.
        updates: Optimizer steps of the cycle; below 1 when one step needs several rollouts.
    """

    phases: tuple[PhaseTime, ...]
    updates: float

    @property
    def cycle_seconds(self) -> float:
        """Seconds from one rollout to the next."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def step_seconds(self) -> float:
        """Seconds per optimizer step."""
        return self.cycle_seconds / self.updates


def gpu_hours(step: StepTime, steps: int, gpus: int) -> float:
    """GPU-hours of ``steps`` optimizer steps while ``gpus`` GPUs are held, trainer and rollout together."""
    return step.step_seconds * steps * gpus / 3600


# --- trainer ---


def training_rate(arch: Architecture, gpu: Gpu, assumptions: Assumptions) -> float:
    """FLOPs per second and GPU in the matrices of forward and backward."""
    return gpu.bf16_flops * (assumptions.moe_mfu if arch.moe else assumptions.dense_mfu)


def _link(gpu: Gpu, ranks: int, gpus_per_node: int, assumptions: Assumptions) -> float:
    """Bytes per second and GPU of a collective over ``ranks`` neighbouring ranks."""
    if ranks <= gpus_per_node:
        return gpu.nvlink_bandwidth / 2 * assumptions.link_efficiency
    doublings = math.log2(ranks / gpus_per_node)
    return (
        assumptions.network_bandwidth
        * assumptions.link_efficiency
        * math.pow(assumptions.network_doubling, doublings)
    )


def communication_seconds(
    arch: Architecture,
    layout: LayoutSpec,
    gpu: Gpu,
    tokens: float,
    gpus_per_node: int,
    assumptions: Assumptions,
    *,
    full_recompute: bool = False,
) -> float:
    """Seconds that one rank waits for collectives in one micro batch of ``tokens`` tokens, none of it
    overlapped.

    Counted in passes over the layers: a forward, a backward of two, and one more forward with full
    recomputation. Per layer and pass TP has two all-gathers and two reduce-scatters of tokens x H, EP a
    dispatch and a combine of top-k x tokens x H, CP an all-to-all of the GDN projections or a ring of keys
    and values. Ranks are numbered tp-cp-ep-dp-pp (megatron/core/parallel_state.py), so a group is inside a
    node when the product of the degrees up to it is.
    """
    passes = 4 if full_recompute else 3
    local = tokens / layout.cp
    layers = arch.layers / layout.pp
    seconds = 0.0
    if layout.tp > 1:
        volume = 4 * local * arch.hidden_size * BF16 * (layout.tp - 1) / layout.tp
        seconds += layers * passes * volume / _link(gpu, layout.tp, gpus_per_node, assumptions)
    if arch.moe and layout.ep > 1:
        copies = arch.moe.experts_per_token * local / layout.tp
        volume = 2 * copies * arch.hidden_size * BF16 * (layout.ep - 1) / layout.ep
        seconds += layers * passes * volume / _link(gpu, layout.etp * layout.ep, gpus_per_node, assumptions)
    if layout.cp > 1:
        gdn_width = (2 * arch.gdn.key_size + 3 * arch.gdn.value_size) / layout.tp
        kv_width = 2 * arch.kv_size / min(layout.tp, arch.kv_heads) * (layout.cp - 1)
        width = (arch.gdn_layers * gdn_width + arch.attention_layers * kv_width) / arch.layers
        volume = local * width * BF16 * (layout.cp - 1) / layout.cp
        seconds += layers * passes * volume / _link(gpu, layout.tp * layout.cp, gpus_per_node, assumptions)
    if layout.pp > 1:
        neighbours = layout.world_size // layout.pp + 1  # the next stage is that many ranks away
        volume = local / layout.tp * arch.hidden_size * BF16
        seconds += passes * volume / _link(gpu, neighbours, gpus_per_node, assumptions)
    return seconds


def micro_batch_seconds(
    arch: Architecture,
    layout: LayoutSpec,
    gpu: Gpu,
    tokens: float,
    length: float,
    gpus_per_node: int,
    assumptions: Assumptions,
    *,
    full_recompute: bool = False,
    frozen: bool = False,
) -> float:
    """Seconds of forward and backward of one micro batch of ``tokens`` tokens in documents of ``length``
    tokens, on the
    slowest pipeline stage: the last, which has the output layer, unless it has fewer layers."""
    flops = flops_per_token(arch)
    per_layer = (flops.body + flops.attention_core * length) / arch.layers
    slowest = max(
        layout.stage_layers(arch.layers, stage) * per_layer + (flops.logits if stage == layout.pp - 1 else 0)
        for stage in {0, layout.pp // 2, layout.pp - 1}
    )
    passes = (2 if frozen else 3) + (1 if full_recompute else 0)
    left = math.prod(
        math.pow(kept, math.log2(degree))
        for kept, degree in (
            (assumptions.tp_doubling, layout.tp),
            (assumptions.cp_doubling, layout.cp),
            (assumptions.pp_doubling, layout.pp),
        )
    )
    rate = training_rate(arch, gpu, assumptions) * left
    compute = passes * tokens * slowest / (layout.tp * layout.cp) / rate
    launched = passes * max(1.0, arch.layers / layout.pp) * assumptions.layer_overhead
    return max(compute, launched) + communication_seconds(
        arch, layout, gpu, tokens, gpus_per_node, assumptions, full_recompute=full_recompute
    )


def pipeline_passes(pp: int, micro_batches: int) -> int:
    """Micro-batch slots of one step, the bubble included (one-forward-one-backward schedule)."""
    return micro_batches + pp - 1


def gradient_seconds(
    arch: Architecture, layout: LayoutSpec, gpu: Gpu, gpus_per_node: int, assumptions: Assumptions
) -> float:
    """Reduce-scatter of fp32 gradients and all-gather of bf16 weights, once per step, over the data-parallel
    ranks."""
    counts = count_parameters(arch)
    seconds = 0.0
    for parameters, split, replicas in (
        (counts.text - counts.experts, layout.tp * layout.pp, layout.dp_size * layout.cp),
        (counts.experts, layout.expert_model_size, layout.edp_size),
    ):
        if replicas > 1:
            volume = (4 + BF16) * parameters / split * (replicas - 1) / replicas
            seconds += volume / _link(gpu, layout.world_size // layout.pp, gpus_per_node, assumptions)
    return seconds


def zero3_seconds(
    arch: Architecture,
    ranks: int,
    gpu: Gpu,
    gpus_per_node: int,
    assumptions: Assumptions,
    *,
    frozen: bool = False,
) -> float:
    """Collectives of one micro batch under ZeRO stage 3: the bf16 weights are gathered for the forward pass
    and again for the backward pass, and the gradients scattered; 3 x the parameters in all (Rajbhandari et
    al., arXiv 1910.02054, section 7.2.2). With ``frozen`` weights there are no gradients worth counting."""
    counts = count_parameters(arch)
    volume = (2 if frozen else 3) * BF16 * (counts.text + counts.visual) * (ranks - 1) / ranks
    return volume / _link(gpu, ranks, gpus_per_node, assumptions)


# --- rollout ---


def touched_experts(experts: int, per_token: int, tokens: float) -> float:
    """Expected number of experts that ``tokens`` tokens choose, if they choose evenly: E * (1 - (1 -
    k/E)^tokens)."""
    return experts * (1.0 - math.pow(1 - per_token / experts, tokens))


def _decode_weight_bytes(arch: Architecture, sequences: float) -> float:
    """Weights that one decoding step of ``sequences`` sequences reads, over all TP ranks."""
    counts = count_parameters(arch)
    dense = (
        counts.body - counts.experts + counts.embedding
    )  # the output layer; the embedding itself is a lookup
    if arch.moe is None:
        return BF16 * dense
    share = touched_experts(arch.moe.experts, arch.moe.experts_per_token, sequences) / arch.moe.experts
    return BF16 * (dense + share * counts.experts)


def rollout_seconds(
    arch: Architecture,
    gpu: Gpu,
    vllm: VllmSpec,
    engines: int,
    completions: int,
    workload: Workload,
    assumptions: Assumptions,
    *,
    colocate: bool = False,
) -> float:
    """Seconds to generate ``completions`` completions on ``engines`` engines of ``vllm.tp`` GPUs.

    Prompts are computed at the training rate of a forward pass. A decoding step reads the weights once and
    the KV cache and GDN state of every running sequence; it cannot be faster than its FLOPs either. There are
    as many steps as the longest completion has tokens, times the number of waves when max_num_seqs, or the
    number of sequences of mean length that the KV cache holds, is smaller than the batch.
    """
    rate = training_rate(arch, gpu, assumptions) * assumptions.forward_mfu_gain * vllm.tp
    flops = flops_per_token(arch)
    per_engine = completions / engines
    prefill = per_engine * workload.mean_prompt * flops.forward(int(workload.mean_prompt)) / rate

    longest = min(workload.max_completion, workload.mean_completion * assumptions.longest_over_mean)
    held = engine_cache(arch, vllm, gpu).concurrency(workload.mean_prompt + workload.mean_completion)
    running = min(per_engine, vllm.max_num_seqs, max(1.0, held))
    waves = per_engine / running
    # The batch thins out towards the tail: on average over the steps, mean / longest of it is running.
    average = max(1.0, running * workload.mean_completion / longest)
    steps = longest * waves
    context = workload.mean_prompt + workload.mean_completion / 2
    per_sequence = (kv_bytes_per_token(arch, 1) * context + 2 * gdn_state_bytes(arch, 1)) / vllm.tp
    read = _decode_weight_bytes(arch, average) / vllm.tp + average * per_sequence
    by_bandwidth = read / (gpu.memory_bandwidth * assumptions.decode_bandwidth)
    by_compute = average * flops.decode(int(context)) / rate
    by_python = assumptions.colocate_step if colocate else 0.0
    return prefill + steps * (max(by_bandwidth, by_compute, by_python) + assumptions.decode_step_overhead)


# --- the step ---


def estimate_step(
    arch: Architecture,
    layout: LayoutSpec,
    batch: Batch,
    gpu: Gpu,
    vllm: VllmSpec,
    engines: int,
    workload: Workload,
    *,
    gpus_per_node: int = 8,
    full_recompute: bool = False,
    frozen: bool = False,
    uses_reference: bool = True,
    servers: int = 1,
    zero3: bool = False,
    assumptions: Assumptions = DEFAULT_ASSUMPTIONS,
) -> StepTime:
    """Time of one rollout cycle.

    Args:
        frozen: Only adapters are trained.
        engines: vLLM engines over all servers (DP size x servers; in colocate mode world size / vllm.tp).
        uses_reference: beta > 0: one forward pass of the reference over every completion.
        servers: Rollout servers that weights are broadcast to, one after the other; 0 in colocate mode.
        zero3: Every rank holds a part of all weights, which it gathers for each micro batch (swift backend).
    """
    rate = training_rate(arch, gpu, assumptions)
    mfu = f"{rate / gpu.bf16_flops:.0%} of {gpu.bf16_flops / 1e12:.0f} TFLOP/s"
    tokens = batch.micro_batch_size * workload.mean_length
    train = micro_batch_seconds(
        arch,
        layout,
        gpu,
        tokens,
        workload.mean_length,
        gpus_per_node,
        assumptions,
        full_recompute=full_recompute,
        frozen=frozen,
    )
    forward = (
        micro_batch_seconds(arch, layout, gpu, tokens, workload.mean_length, gpus_per_node, assumptions) / 3
    )
    forward /= assumptions.forward_mfu_gain
    gradients = gradient_seconds(arch, layout, gpu, gpus_per_node, assumptions)
    if zero3:
        gathers = zero3_seconds(arch, layout.world_size, gpu, gpus_per_node, assumptions, frozen=frozen)
        train, forward, gradients = train + gathers, forward + gathers / (2 if frozen else 3), 0.0
    slots = pipeline_passes(layout.pp, batch.gradient_accumulation)
    updates = batch.updates_per_rollout
    colocate = servers == 0
    python = f", at least {assumptions.colocate_step * 1e3:g} ms of Python a token" if colocate else ""
    phases = [
        PhaseTime(
            "rollout",
            rollout_seconds(
                arch,
                gpu,
                vllm,
                engines,
                batch.generation_batch_size,
                workload,
                assumptions,
                colocate=colocate,
            ),
            f"{assumptions.decode_bandwidth:.0%} of {gpu.memory_bandwidth / 1e12:.2f} TB/s on {engines} "
            f"engines of {vllm.tp} GPUs{python}; longest completion {assumptions.longest_over_mean:g} x the "
            "mean",
        )
    ]
    # both trainers compute those of the old policy for every rollout, also where one step is made of it
    # (swift 4.6.0 megatron/trainers/grpo_trainer.py:668, rlhf_trainers/grpo_trainer.py:761)
    passes = 2 if uses_reference else 1
    phases.append(
        PhaseTime(
            "log-probabilities",
            passes * updates * slots * forward,
            f"{passes} forward pass{'es' * (passes > 1)} (old policy{' and reference' * uses_reference}) at "
            f"{assumptions.forward_mfu_gain:g} x {mfu}",
        )
    )
    phases.append(
        PhaseTime(
            "update",
            updates * (slots * train + gradients),
            f"{updates:g} steps of {batch.gradient_accumulation} micro batches at {mfu}; collectives not "
            "overlapped",
        )
    )
    counts = count_parameters(arch)
    volume = BF16 * (counts.text + counts.visual) * max(servers, 1)
    whole = colocate and not zero3 and layout.tp * layout.pp * layout.ep == 1
    bandwidth = assumptions.copy_bandwidth if whole else assumptions.sync_bandwidth
    requests = 0.0 if colocate else assumptions.sync_overhead
    phases.append(
        PhaseTime(
            "weight sync",
            requests + volume / bandwidth,
            f"{volume / 1e9:.0f} GB at {bandwidth / 1e9:g} GB/s" + f" and {requests:g} s" * (not colocate),
        )
    )
    return StepTime(tuple(phases), updates)
