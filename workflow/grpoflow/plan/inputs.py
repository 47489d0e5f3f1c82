"""From the typed configuration to the inputs of the plan.

What the passthrough `args` say counts too, where the arithmetic depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from grpoflow.config import Config
from grpoflow.config.base import as_read
from grpoflow.config.sft import SftConfig
from grpoflow.config.tuner import Parallel, TunerConfig
from grpoflow.facts.installed import installed_packages
from grpoflow.facts.versions import parse_release
from grpoflow.models.architecture import Architecture, ArchitectureError
from grpoflow.plan.auto import Choice, choose_layout
from grpoflow.plan.batch import BatchSpec, SwiftBatchSpec
from grpoflow.plan.hardware import gpu_named
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import ColocateSpec, TrainerSpec, VllmSpec
from grpoflow.plan.placement import Placement, PlacementSpec, place
from grpoflow.plan.problem import PlanError, Problem
from grpoflow.plan.throughput import Workload

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "float32": 4, "bfloat16": 2, "float16": 2}

RECOMMENDED_MEGATRON_CORE = "0.18.0"  # facts/package_bounds.json

MEAN_SHARE = 0.5
"""Mean length over the longest allowed one, of prompts and of completions [assumption], for the time."""


# --- model ---


def read_hf_config(config: Config) -> dict[str, Any]:
    """Read config.json of the starting checkpoint; the `sft` stage does not change the architecture.

    Raises:
        OSError: the checkpoint is not there (yet), or cannot be read.
        ArchitectureError: config.json is not a JSON object.
    """
    path = Path(config.model.path) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArchitectureError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArchitectureError(f"{path} is not a JSON object")
    return found


def architecture_of(config: Config) -> Architecture:
    """The architecture of the starting checkpoint.

    Raises:
        OSError: as :func:`read_hf_config`.
        ArchitectureError: it is not of a supported model.
    """
    return Architecture.from_config(read_hf_config(config))


# --- placement ---


def placement_spec(config: Config) -> PlacementSpec:
    """Nodes and GPUs of the RL allocation."""
    rollout, trainer, cluster = config.rollout, config.trainer, config.cluster
    own = None if trainer.gpus is None else tuple(range(trainer.gpus))
    tensor = rollout.tensor_parallel_size
    if rollout.mode == "colocate":
        return PlacementSpec(
            "colocate", cluster.gpus_per_node, trainer.nodes, trainer_gpus=own, vllm_tp=tensor
        )
    if rollout.nodes:
        return PlacementSpec(
            "server", cluster.gpus_per_node, trainer.nodes, rollout.nodes, trainer_gpus=own, vllm_tp=tensor
        )
    served = rollout.gpus or 0
    trained = trainer.gpus or max(cluster.gpus_per_node - served, 0)
    return PlacementSpec(
        "split",
        cluster.gpus_per_node,
        trainer_gpus=tuple(range(served, served + trained)),
        rollout_gpus=tuple(range(served)),
        vllm_tp=tensor,
    )


def placement_of(config: Config) -> Placement:
    """Place the roles of the RL allocation.

    Raises:
        PlanError: the nodes or GPUs do not fit.
    """
    return place(placement_spec(config))


def sft_ranks_per_node(config: Config) -> int:
    """Processes of the SFT stage on each of its nodes: one per GPU, a single one on a CPU."""
    return config.cluster.gpus_per_node if config.cluster.device == "cuda" else 1


def sft_swift_ranks(sft: SftConfig, world_size: int) -> int:
    """Ranks of `swift sft` with sequences of their own: those of a sequence-parallel group share theirs
    (swift/sequence_parallel/sequence_parallel.py:656). In GRPO they accumulate as many times more instead
    (swift/rlhf_trainers/grpo_trainer.py:171)."""
    return max(1, world_size // max(1, integer(sft.args, "sequence_parallel_size") or 1))


# --- layout ---


def layout_spec(parallel: Parallel, world_size: int, args: Mapping[str, Any]) -> LayoutSpec:
    """The layout that the commands ask Megatron for."""
    args = as_read(args)
    return LayoutSpec(
        world_size,
        tp=parallel.tensor,
        pp=parallel.pipeline,
        cp=parallel.context,
        ep=parallel.expert,
        etp=parallel.expert_tensor,
        sequence_parallel=bool(args.get("sequence_parallel", True)),
        first_stage_layers=integer(args, "decoder_first_pipeline_num_layers"),
        last_stage_layers=integer(args, "decoder_last_pipeline_num_layers"),
    )


def parallel_of(config: Config, world_size: int) -> Parallel:
    """The parallel layout of the trainer, resolved where the configuration says `auto`.

    Raises:
        FileNotFoundError, ArchitectureError: `auto` needs config.json of the checkpoint.
        PlanError: no layout is legal, or none fits in memory.
    """
    if config.trainer.parallel != "auto":
        return config.trainer.parallel
    if world_size == 1 or config.trainer.backend == "swift":
        return Parallel()
    return as_parallel(auto_choice(config, architecture_of(config), world_size).best.layout)


def sft_parallel_of(config: Config, world_size: int) -> Parallel:
    """The same for the SFT stage.

    Raises:
        ValueError: the configuration has no `sft` section; else as :func:`parallel_of`.
    """
    if config.sft is None:
        raise ValueError("this configuration has no sft section")
    if config.sft.parallel != "auto":
        return config.sft.parallel
    if world_size == 1 or config.sft.backend == "swift":
        return Parallel()
    return as_parallel(sft_auto_choice(config, architecture_of(config), world_size).best.layout)


def megatron_core_of(config: Config) -> tuple[int, int]:
    """Release of megatron-core in the training environment, major and minor; the recommended one where the
    environment is not on this machine. A login node must see it, or plan and job could choose differently."""
    installed = installed_packages(config.cluster.environment).get("megatron-core", RECOMMENDED_MEGATRON_CORE)
    release = parse_release(installed)
    return release[0], release[1]


def as_parallel(layout: LayoutSpec) -> Parallel:
    return Parallel(
        tensor=layout.tp,
        pipeline=layout.pp,
        context=layout.cp,
        expert=layout.ep,
        expert_tensor=layout.etp,
    )


def auto_choice(config: Config, arch: Architecture, world_size: int) -> Choice:
    """Choose among the layouts of the GRPO trainer.

    Raises:
        PlanError: as :func:`grpoflow.plan.auto.choose_layout`, or there are no data of the GPU.
    """
    colocate = None
    if config.rollout.mode == "colocate":
        colocate = (vllm_spec(config), colocate_spec(config))
    return _choose(
        config,
        config.trainer,
        arch,
        world_size,
        batch_spec(config),
        trainer_spec(config),
        colocate,
    )


def sft_auto_choice(config: Config, arch: Architecture, world_size: int) -> Choice:
    """Choose among the layouts of the SFT trainer.

    Raises:
        ValueError: the configuration has no `sft` section; else as :func:`auto_choice`.
    """
    if config.sft is None:
        raise ValueError("this configuration has no sft section")
    # an SFT batch is a GRPO batch whose groups have one member
    batch = BatchSpec(config.sft.global_batch_size, config.sft.micro_batch_size, num_generations=1)
    return _choose(config, config.sft, arch, world_size, batch, sft_spec(config), None)


def _choose(
    config: Config,
    tuner: TunerConfig,
    arch: Architecture,
    world_size: int,
    batch: BatchSpec,
    spec: TrainerSpec,
    colocate: tuple[VllmSpec, ColocateSpec] | None,
) -> Choice:
    try:
        gpu = gpu_named(config.cluster.gpu)
    except ValueError as error:
        raise PlanError([Problem("gpu_is_known", "cluster.gpu", config.cluster.gpu, str(error))]) from error
    return choose_layout(
        arch,
        world_size,
        gpu,
        batch,
        spec,
        MEAN_SHARE * spec.tokens / tuner.micro_batch_size,
        gpus_per_node=config.cluster.gpus_per_node,
        megatron_core=megatron_core_of(config),
        colocate=colocate,
    )


# --- batch ---


def batch_spec(config: Config) -> BatchSpec:
    """Batch of `megatron rlhf`. The workflow passes no validation set: evaluation is a stage of its own."""
    trainer = config.trainer
    return BatchSpec(
        global_batch_size=trainer.global_batch_size,
        micro_batch_size=trainer.micro_batch_size,
        num_generations=trainer.num_generations,
        generation_batch_size=integer(trainer.args, "generation_batch_size"),
        steps_per_generation=trainer.steps_per_generation,
        num_generations_eval=integer(trainer.args, "num_generations_eval"),
        evaluates="val_dataset" in trainer.args,
        save_steps=trainer.save_steps if trainer.save_optimizer else None,
    )


def swift_batch_spec(config: Config, world_size: int) -> SwiftBatchSpec | None:
    """Batch of `swift rlhf`, or None where global_batch_size is no multiple of micro_batch_size x ranks."""
    trainer = config.trainer
    accumulation, rest = divmod(trainer.global_batch_size, trainer.micro_batch_size * world_size)
    if rest:
        return None
    return SwiftBatchSpec(
        world_size=world_size,
        per_device_train_batch_size=trainer.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        num_generations=trainer.num_generations,
        generation_batch_size=integer(trainer.args, "generation_batch_size"),
        steps_per_generation=trainer.steps_per_generation * accumulation,
        num_iterations=integer(trainer.args, "num_iterations") or 1,
        per_device_eval_batch_size=integer(trainer.args, "per_device_eval_batch_size") or 1,
        num_generations_eval=integer(trainer.args, "num_generations_eval"),
        evaluates="val_dataset" in trainer.args,
    )


# --- memory and time ---


def trainer_spec(config: Config) -> TrainerSpec:
    """What the memory of a GRPO trainer depends on."""
    trainer = config.trainer
    length = config.data.max_length + trainer.max_completion_length
    reference = trainer.tuner == "full" and (trainer.backend == "megatron" or trainer.beta > 0)
    spec = _tuner_spec(config, trainer, trainer.micro_batch_size * length, reference=reference, syncs=True)
    if trainer.backend == "megatron":
        return spec
    completions = trainer.micro_batch_size * trainer.max_completion_length
    return replace(spec, logit_tokens=completions)


def sft_spec(config: Config) -> TrainerSpec:
    """What the memory of the SFT trainer depends on.

    Raises:
        ValueError: the configuration has no `sft` section.
    """
    if config.sft is None:
        raise ValueError("this configuration has no sft section")
    tokens = config.sft.micro_batch_size * config.sft.max_length
    return _tuner_spec(config, config.sft, tokens, reference=False, syncs=False)


def _tuner_spec(
    config: Config, tuner: TunerConfig, tokens: int, *, reference: bool, syncs: bool
) -> TrainerSpec:
    args = as_read(tuner.args)

    def width(name: str) -> int:
        return DTYPE_BYTES.get(str(args.get(name)), 4)

    megatron, float32 = tuner.backend == "megatron", config.model.torch_dtype == "float32"
    share = args.get("optimizer_offload_fraction", 1.0) if tuner.optimizer_cpu_offload else 0.0
    return TrainerSpec(
        tokens=tokens,
        tuner=tuner.tuner,
        lora_rank=tuner.lora_rank,
        freeze_vit=tuner.freeze_vit,
        freeze_aligner=tuner.freeze_aligner,
        trains_mtp=bool(args.get("mtp_num_layers")),
        reference_model=reference,
        # gradient checkpointing of the swift backend recomputes whole blocks
        recompute="full" if tuner.backend == "swift" and tuner.recompute != "none" else tuner.recompute,
        weight_bytes=DTYPE_BYTES[config.model.torch_dtype],
        distributed_optimizer=bool(args.get("use_distributed_optimizer", True)),
        optimizer_offload=float(share) if isinstance(share, int | float) else 1.0,
        grad_bytes=width("main_grads_dtype") if megatron else 2,
        # float32 weights have no second copy (megatron-core distrib_optimizer.py, shard_fp32_groups)
        main_param_bytes=0 if megatron and float32 else width("main_params_dtype"),
        exp_avg_bytes=width("exp_avg_dtype"),
        exp_avg_sq_bytes=width("exp_avg_sq_dtype"),
        syncs=syncs,
        sync_batches=integer(args, "move_model_batches") or 1,
    )


def model_length(config: Config) -> int:
    """vllm_max_model_len: tokens of the longest prompt and completion, unless the args say another."""
    section = config.rollout if config.rollout.mode == "server" else config.trainer
    given = integer(section.args, "vllm_max_model_len")
    return given or config.data.max_length + config.trainer.max_completion_length


def vllm_spec(config: Config) -> VllmSpec:
    """One vLLM engine. In colocate mode no more than the completions of the ranks that it spans run at once,
    which is what ms-swift asks for by itself (swift megatron/trainers/rollout_mixin.py:461)."""
    rollout, trainer = config.rollout, config.trainer
    running = rollout.max_num_seqs
    if rollout.mode == "colocate":
        completions = trainer.global_batch_size * trainer.steps_per_generation
        ranks = placement_spec(config).trainer_world_size
        share = max(1, completions // max(1, ranks)) * rollout.tensor_parallel_size
        running = min(running, share)
    return VllmSpec(
        tp=rollout.tensor_parallel_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        max_num_seqs=running,
        max_model_len=model_length(config),
        kv_cache_memory=integer(rollout.engine_args, "kv_cache_memory_bytes"),
        prefix_caching=_prefix_caching(config),
        enforce_eager=rollout.enforce_eager,
    )


def _prefix_caching(config: Config) -> bool:
    """Colocated engines cache prefixes, since ms-swift says so; a server leaves it to vLLM, which has it off
    for models with gated delta nets (swift rlhf_trainers/args_mixin.py:47, 173; vLLM 0.23.0
    config/model.py:1852)."""
    rollout = config.rollout
    if rollout.mode == "colocate":
        given = as_read(config.trainer.args).get("vllm_enable_prefix_caching", True)
    else:
        given = as_read(rollout.args).get("vllm_enable_prefix_caching")
    return bool(rollout.engine_args.get("enable_prefix_caching", False) if given is None else given)


def colocate_spec(config: Config) -> ColocateSpec:
    """How trainer and vLLM share a GPU: as the commands say, unless the args say otherwise."""
    args = as_read(config.trainer.args)
    levels: dict[Any, Literal[0, 1, 2]] = {0: 0, 1: 1, 2: 2}
    return ColocateSpec(
        sleep_level=levels.get(args.get("sleep_level", 1), 1),
        offload_model=bool(args.get("offload_model", True)),
        offload_optimizer=bool(args.get("offload_optimizer", True)),
    )


def workload_of(config: Config) -> Workload:
    """Lengths for the time estimate: nobody knows them before the data are read."""
    longest = config.trainer.max_completion_length
    return Workload(MEAN_SHARE * config.data.max_length, MEAN_SHARE * longest, longest)


def integer(args: Mapping[str, Any], name: str) -> int | None:
    """An integer among the passthrough arguments; other types are reported by the argument check."""
    value = as_read(args).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
