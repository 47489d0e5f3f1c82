"""Every check has a configuration that it refuses or warns of, and says the key that repairs it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from configurations import changed_model, config, environment, model_directory, other_model
from grpoflow.commands.base import Command
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.preflight import Refused, check_raw, refuse_faults
from grpoflow.preflight.estimate import trainer_ranks
from grpoflow.preflight.generated import generated_commands
from grpoflow.preflight.memory import helps
from grpoflow.preflight.modelled import KEY_OF_ARGUMENT, WORKFLOW, modelled_key
from grpoflow.preflight.rules import CHECKS
from grpoflow.preflight.run import all_rules
from grpoflow.preflight.subject import Subject

ROOT = Path(__file__).parents[2]
SFT: dict[str, Any] = {
    "dataset": "data/sft.jsonl",
    "learning_rate": 1.0e-5,
    "epochs": 1,
    "global_batch_size": 16,
    "parallel": {"tensor": 2},
}
COLOCATE: dict[str, Any] = {"mode": "colocate", "gpu_memory_utilization": 0.5}
SWIFT: dict[str, Any] = {"backend": "swift", "parallel": "auto"}


def args(section: str = "trainer", **given: Any) -> dict[str, Any]:
    return {section: {"args": given}}


def parallel(**sizes: int) -> dict[str, Any]:
    return {"trainer": {"parallel": sizes}}


def benchmarks(dataset: str, **given: Any) -> dict[str, Any]:
    return {"evaluate": {"benchmarks": {"datasets": [dataset], "args": given}}}


def release(version: str, **overlay: Any) -> dict[str, Any]:
    return {"cluster": {"ms_swift": version}, **overlay}


TOO_LITTLE = {"launcher": "slurm", "mem_mb": 16000}
"""Resources of the RL job as the rule has them."""

FIRES: dict[str, tuple[str, dict[str, Any]]] = {
    # arguments
    "argument_exists": ("trainer.args.num_itreations", args(num_itreations=1)),
    "argument_was_renamed": ("trainer.args.ref_load", args(ref_load="x")),
    "argument_has_a_legal_value": ("trainer.args.router_replay_mode", args(router_replay_mode="R9")),
    "argument_is_not_modelled": ("trainer.args.lr", args(lr=1.0e-6)),
    "argument_is_not_null": ("trainer.args.callbacks", args(callbacks=["a", None])),
    "unknown_arguments_are_refused": ("trainer.args.ignore_args_error", args(ignore_args_error=True)),
    "rollout_args_are_used": (
        "rollout.args",
        {"rollout": {**COLOCATE, "args": {"vllm_use_async_engine": True}}},
    ),
    "engine_args_reach_the_engine": ("trainer.args.vllm_max_model_len", args(vllm_max_model_len=4096)),
    "release_has_what_the_workflow_passes": ("cluster.ms_swift", release("4.4.2")),
    "packing_needs_tokenised_rows": (
        "sft.args.packing",
        {"sft": {**SFT, "args": {"packing": True, "lazy_tokenize": True}}},
    ),
    "group_by_length_needs_lengths": ("trainer.args.group_by_length", args(group_by_length=True)),
    "streaming_has_no_cache": ("trainer.args.streaming", args(streaming=True, cached_dataset="c")),
    "streaming_needs_steps": (
        "trainer.epochs",
        {"trainer": {"train_steps": None, "epochs": 1, "args": {"streaming": True}}},
    ),
    "recompute_arguments_agree": (
        "trainer.args.recompute_method",
        {"trainer": {"recompute": "selective", "args": {"recompute_method": "uniform"}}},
    ),
    "soft_overlong_has_a_length": (
        "trainer.args.soft_cache_length",
        {"rewards": {"functions": ["soft_overlong"]}},
    ),
    "template_is_the_same_everywhere": ("rollout.args.response_prefix", args(response_prefix="<think>")),
    "offload_is_of_use": (
        "trainer.optimizer_cpu_offload",
        {"trainer": {"tuner": "lora", "optimizer_cpu_offload": True}},
    ),
    "engine_args_are_not_set_twice": (
        "rollout.engine_args.max_num_seqs",
        {"rollout": {"engine_args": {"max_num_seqs": 8}}},
    ),
    "engine_args_exist": (
        "rollout.engine_args.gdn_prefil_backend",
        {
            "cluster": {"environment": {"vllm": "0.23.0"}},
            "rollout": {"engine_args": {"gdn_prefil_backend": "triton"}},
        },
    ),
    "optimizer_can_be_narrow": ("trainer.args.exp_avg_dtype", args(exp_avg_dtype="bf16")),
    "offload_fraction_is_a_share": (
        "trainer.args.optimizer_offload_fraction",
        args(optimizer_offload_fraction=1.5),
    ),
    "val_is_held_out": ("data.val", {"data": {"val": "./data/train.jsonl"}}),
    "gdn_switch_is_a_word": (
        "cluster.env.USE_MCORE_GDN",
        {"cluster": {"env": {"USE_MCORE_GDN": "never"}}},
    ),
    # the job
    "job_asks_for_its_gpus": ("resources.gres", {}),
    "job_asks_for_its_memory": ("resources.mem_mb", {}),
    # benchmarks and exported adapters
    "benchmarks_have_evalscope": (
        "evaluate.benchmarks.datasets",
        {"cluster": {"environment": {"torch": "2.11.0"}}, **benchmarks("gsm8k")},
    ),
    "benchmark_is_known": (
        "evaluate.benchmarks.datasets",
        {"cluster": {"environment": {"evalscope": "1.14.1"}}, **benchmarks("gsm9k")},
    ),
    "benchmarks_fit_one_node": (
        "evaluate.benchmarks.datasets",
        {"rollout": {"mode": "colocate", "tensor_parallel_size": 16}, **benchmarks("gsm8k")},
    ),
    "benchmarks_start_anew": (
        "evaluate.benchmarks.args.extra_eval_args.use_cache",
        benchmarks("gsm8k", extra_eval_args={"use_cache": "outputs/old"}),
    ),
    "adapter_of_experts_is_merged": (
        "export.lora",
        {
            "model": {"path": "35B-A3B"},
            "trainer": {"tuner": "lora"},
            "export": {"lora": "adapter"},
        },
    ),
    # batch
    "counts_are_positive": ("trainer.args.generation_batch_size", args(generation_batch_size=0)),
    "world_size_fits_dense_layout": ("trainer.nodes", parallel(tensor=16)),
    "world_size_fits_expert_layout": ("trainer.nodes", parallel(expert=16)),
    "global_batch_divisible_by_micro_batch_dp": (
        "trainer.global_batch_size",
        {"trainer": {"global_batch_size": 66}},
    ),
    "generation_batch_is_batch_times_steps": (
        "trainer.args.generation_batch_size",
        args(generation_batch_size=65),
    ),
    "generation_batch_divisible_by_num_generations": (
        "trainer.global_batch_size",
        {"trainer": {"num_generations": 7}},
    ),
    "rollout_prompts_divisible_by_dp": ("trainer.global_batch_size", {"trainer": {"global_batch_size": 16}}),
    "rollout_prompts_per_dp_divisible_by_micro_batch": (
        "trainer.global_batch_size",
        {"trainer": {"global_batch_size": 96, "micro_batch_size": 2}},
    ),
    "generation_batch_at_least_world_size": (
        "trainer.global_batch_size",
        {"trainer": {"global_batch_size": 4, "num_generations": 4, "parallel": {"tensor": 8}}},
    ),
    "generation_batch_divisible_by_world_size": (
        "trainer.global_batch_size",
        {"trainer": {"global_batch_size": 12, "num_generations": 4, "parallel": {"tensor": 8}}},
    ),
    "eval_batch": (
        "trainer.global_batch_size",
        {"trainer": {"global_batch_size": 16, "steps_per_generation": 2, "args": {"val_dataset": "v"}}},
    ),
    "checkpoint_can_be_resumed": (
        "trainer.save_steps",
        {"trainer": {"global_batch_size": 16, "steps_per_generation": 2, "save_steps": 25}},
    ),
    "checkpoint_at_rollout_boundary": (
        "trainer.save_steps",
        {"trainer": {"steps_per_generation": 4, "save_steps": 10}},
    ),
    "global_batch_divisible_by_device_batch": (
        "trainer.global_batch_size",
        {"trainer": {**SWIFT, "global_batch_size": 60}},
    ),
    "swift_groups_are_whole": ("trainer.global_batch_size", {"trainer": {**SWIFT, "num_generations": 12}}),
    "sft_batch_fits_ranks": ("sft.global_batch_size", {"sft": {**SFT, "global_batch_size": 6}}),
    "sft_world_size_fits_layout": ("sft.nodes", {"sft": {**SFT, "parallel": {"tensor": 16}}}),
    # layout
    "valid_trainer_gpus": ("trainer.gpus", {"trainer": {"gpus": 9}}),
    "colocate_vllm_tp_divides_world": (
        "rollout.tensor_parallel_size",
        {"rollout": {**COLOCATE, "tensor_parallel_size": 3}},
    ),
    "engine_within_node": (
        "rollout.tensor_parallel_size",
        {"rollout": {**COLOCATE, "tensor_parallel_size": 16}, "trainer": {"nodes": 2}},
    ),
    "server_fits_its_gpus": ("rollout.tensor_parallel_size", {"rollout": {"tensor_parallel_size": 16}}),
    "server_uses_its_gpus": ("rollout.tensor_parallel_size", {"rollout": {"tensor_parallel_size": 3}}),
    "shared_node_has_room": ("rollout.gpus", {"rollout": {"nodes": 0, "gpus": 4}, "trainer": {"gpus": 6}}),
    "tp_divides_num_attention_heads": (
        "trainer.parallel.tensor",
        {"model": {"path": "27B"}, **parallel(tensor=16)},
    ),
    "tp_divides_linear_num_key_heads": (
        "trainer.parallel.tensor",
        {"model": {"path": "9B"}, **parallel(tensor=3)},
    ),
    "tp_divides_linear_num_value_heads": (
        "trainer.parallel.tensor",
        {"model": {"path": "9B"}, **parallel(tensor=3)},
    ),
    "tp_divides_intermediate_size": (
        "trainer.parallel.tensor",
        {"model": {"path": "9B"}, **parallel(tensor=5)},
    ),
    "tp_divides_shared_expert_intermediate_size": (
        "trainer.parallel.tensor",
        {"model": {"path": "35B-A3B"}, **parallel(tensor=3)},
    ),
    "tp_fits_kv_heads": ("trainer.parallel.tensor", {"model": {"path": "9B"}, **parallel(tensor=3)}),
    "moe_needs_sequence_parallel": (
        "trainer.args.sequence_parallel",
        {
            "model": {"path": "35B-A3B"},
            "trainer": {"parallel": {"tensor": 2}, "args": {"sequence_parallel": False}},
        },
    ),
    "cp_needs_megatron_core": (
        "trainer.parallel.context",
        {
            "model": {"path": "9B"},
            "cluster": {"environment": {"megatron_core": "0.16.1"}},
            **parallel(context=2),
        },
    ),
    "tp_cp_divide_gdn_heads": (
        "trainer.parallel.context",
        {"model": {"path": "27B"}, **parallel(tensor=8, context=4)},
    ),
    "uneven_stages_need_pp": (
        "trainer.args.decoder_first_pipeline_num_layers",
        {"model": {"path": "9B"}, **args(decoder_first_pipeline_num_layers=4)},
    ),
    "layers_fill_the_stages": (
        "trainer.args.decoder_first_pipeline_num_layers",
        {
            "model": {"path": "9B"},
            "trainer": {"parallel": {"pipeline": 4}, "args": {"decoder_first_pipeline_num_layers": 7}},
        },
    ),
    "pp_divides_layers": ("trainer.parallel.pipeline", {"model": {"path": "9B"}, **parallel(pipeline=3)}),
    "dense_has_no_experts": ("trainer.parallel.expert", {"model": {"path": "9B"}, **parallel(expert=8)}),
    "ep_divides_experts": ("trainer.parallel.expert", {"model": {"path": "35B-A3B"}, **parallel(expert=3)}),
    "etp_divides_expert_width": (
        "trainer.parallel.expert_tensor",
        {"model": {"path": "35B-A3B"}, **parallel(expert_tensor=3)},
    ),
    "ep1_needs_etp_equal_tp": (
        "trainer.parallel.expert",
        {"model": {"path": "35B-A3B"}, **parallel(tensor=2)},
    ),
    "vocabulary_counts_in_grad_norm": (
        "trainer.args.perform_initialization",
        {"cluster": {"environment": {"megatron_core": "0.17.1"}}, **args(perform_initialization=False)},
    ),
    "tp_within_node": (
        "trainer.parallel.tensor",
        {"model": {"path": "9B"}, "trainer": {"nodes": 2, "parallel": {"tensor": 16}}},
    ),
    "auto_layout_is_legal": (
        "trainer.parallel",
        {
            "model": {"path": "9B"},
            "trainer": {"parallel": "auto", "global_batch_size": 2, "num_generations": 3},
        },
    ),
    "auto_layout_fits": (
        "trainer.parallel",
        {"model": {"path": "397B-A17B"}, "trainer": {"parallel": "auto"}},
    ),
    "vllm_tp_divides_heads": (
        "rollout.tensor_parallel_size",
        {"model": {"path": "9B"}, "rollout": {"tensor_parallel_size": 5}},
    ),
    "swift_backend_ignores_layout": ("trainer.parallel", {"trainer": {"backend": "swift"}}),
    # memory
    "gpu_is_known": ("cluster.gpu", {"cluster": {"gpu": "X100"}}),
    "model_is_known": ("model.path", {"model": {"path": "other"}}),
    "training_fits": ("trainer.parallel", {"model": {"path": "27B"}}),
    "sft_fits": ("sft.parallel", {"model": {"path": "27B"}, "sft": SFT}),
    "vllm_weights_fit": ("rollout.tensor_parallel_size", {"model": {"path": "122B-A10B"}}),
    "vllm_states_fit": (
        "rollout.max_num_seqs",
        {"model": {"path": "27B"}, "rollout": {"max_num_seqs": 1024}},
    ),
    "model_fits_a_rollout_node": (
        "rollout.mode",
        {"model": {"path": "397B-A17B"}, "rollout": {"tensor_parallel_size": 8}},
    ),
    "weights_fit_by_their_size": ("rollout.tensor_parallel_size", {"model": {"path": "other"}}),
    "colocated_engine_leaves_room": (
        "rollout.gpu_memory_utilization",
        {"rollout": {"mode": "colocate", "gpu_memory_utilization": 0.9}},
    ),
    "host_memory_holds_what_is_offloaded": (
        "cluster.host_memory_gib",
        {
            "model": {"path": "27B"},
            "cluster": {"host_memory_gib": 64},
            "trainer": {"parallel": {"tensor": 8}, "optimizer_cpu_offload": True},
        },
    ),
    # model
    "model_config_is_whole": ("model.path", {"model": {"path": "torn"}}),
    "megatron_knows_the_model": ("trainer.backend", {"model": {"path": "text"}}),
    "embeddings_are_tied_alike": ("model.path", {"model": {"path": "untied"}}),
    # resume
    "float32_optimizer_can_be_loaded": (
        "trainer.args.dist_ckpt_optim_fully_reshardable",
        {"model": {"torch_dtype": "float32"}},
    ),
    "run_can_be_resumed": ("trainer.save_optimizer", {"trainer": {"save_optimizer": False}}),
    "run_saves_before_its_end": ("trainer.save_steps", {"trainer": {"save_steps": 200}}),
    "exported_checkpoint_will_exist": ("export.checkpoint", {"export": {"checkpoint": 30}}),
    "evaluated_checkpoints_will_exist": ("evaluate.checkpoints", {"evaluate": {"checkpoints": [50, 30]}}),
    "wall_time_covers_a_save": (
        "trainer.save_steps",
        {"model": {"path": "9B"}, "trainer": {"train_steps": 10000, "save_steps": 10000}},
    ),
    # rollout
    "completions_fit_the_window": (
        "rollout.args.vllm_max_model_len",
        args("rollout", vllm_max_model_len=4000),
    ),
    "window_fits_the_model": ("data.max_length", {"model": {"path": "9B"}, "data": {"max_length": 262144}}),
    "thinking_has_room": ("trainer.max_completion_length", {"model": {"enable_thinking": True}}),
    "environment_leaves_launching_alone": (
        "cluster.env.NPROC_PER_NODE",
        {"cluster": {"env": {"NPROC_PER_NODE": "8"}}},
    ),
    "transformers_gdn_is_not_split": (
        "cluster.env.USE_MCORE_GDN",
        {"cluster": {"env": {"USE_MCORE_GDN": "0"}}, **parallel(context=2)},
    ),
    "cache_is_shared": ("cluster.cache", {"cluster": {"cache": "/tmp/cache"}, "trainer": {"nodes": 2}}),
    "gpu_can_do_it": ("trainer.args.fp8_format", args(fp8_format="hybrid")),
    "checkpoint_is_not_fp8": ("model.path", {"model": {"path": "fp8"}}),
    "adapters_are_served": (
        "rollout.args.vllm_enable_lora",
        {"model": {"path": "35B-A3B"}, "trainer": {"tuner": "lora"}},
    ),
    "quantised_weights_are_not_synced": ("trainer.args.quant_bits", args(quant_bits=4)),
    "deepspeed_with_experts": (
        "trainer.backend",
        {"model": {"path": "35B-A3B"}, "trainer": {**SWIFT, "deepspeed": "zero3"}},
    ),
    "zero3_sync_is_right": ("trainer.deepspeed", {"trainer": {**SWIFT, "deepspeed": "zero3", "nodes": 2}}),
    "mtp_weights_are_kept": (
        "trainer.args.save_missing_weights",
        {"model": {"path": "9B"}, **args(save_missing_weights=False)},
    ),
    "adapters_of_every_layer_are_merged": (
        "cluster.env.USE_MCORE_GDN",
        {"cluster": {"env": {"USE_MCORE_GDN": "0"}}, "trainer": {"tuner": "lora"}},
    ),
    # stack
    "transformers_gdn_starts": (
        "cluster.env.USE_MCORE_GDN",
        {
            "cluster": {"env": {"USE_MCORE_GDN": "0"}, "environment": {"megatron_core": "0.18.0"}},
            "model": {"path": "9B"},
        },
    ),
    "transformer_engine_finds_its_cublas": (
        "cluster.environment",
        {"cluster": {"environment": {"transformer_engine_cu13": "2.16.0", "nvidia_cublas": "13.1.0.3"}}},
    ),
    "one_cudnn_is_found": (
        "cluster.environment",
        {"cluster": {"environment": {"nvidia_cudnn_cu12": "9.14.0.64", "nvidia_cudnn_cu13": "9.19.0.56"}}},
    ),
    "transformers_saves_beside_vllm": (
        "cluster.environment",
        {"cluster": {"environment": {"transformers": "5.17.0", "vllm": "0.23.0"}}, "rollout": COLOCATE},
    ),
    "fla_trains_on_hopper": (
        "cluster.environment",
        {"cluster": {"gpu": "H200", "environment": {"fla_core": "0.6.0", "triton": "3.6.0"}}},
    ),
    "gated_delta_net_prefill_is_there": (
        "rollout.engine_args.gdn_prefill_backend",
        {"cluster": {"gpu": "H200", "environment": {"vllm": "0.23.0"}}},
    ),
    # versions
    "suppressed_check_exists": (
        "preflight.suppress.eval_bathc",
        {"preflight": {"suppress": {"eval_bathc": "why"}}},
    ),
    "plan_can_be_made": (
        "preflight.suppress.server_fits_its_gpus",
        {
            "rollout": {"tensor_parallel_size": 16},
            "preflight": {"suppress": {"server_fits_its_gpus": "a test"}},
        },
    ),
    "ms_swift_is_recent_enough": ("cluster.ms_swift", release("4.3.2")),
    "ms_swift_release_was_examined": ("cluster.ms_swift", release("4.7.0")),
    "installed_ms_swift_is_the_configured_one": (
        "cluster.ms_swift",
        {"cluster": {"environment": {"ms_swift": "4.5.3"}}},
    ),
    "needed_packages_are_installed": (
        "cluster.environment",
        {"cluster": {"environment": {"torch": "2.11.0"}}},
    ),
    "packing_has_its_transformers": (
        "trainer.args.padding_free",
        {
            "cluster": {"environment": {"transformers": "5.6.0"}},
            "trainer": {**SWIFT, "args": {"padding_free": True}},
        },
    ),
    "installed_packages_fit": (
        "cluster.environment",
        {"cluster": {"environment": {"transformers": "5.0.0"}}},
    ),
    "megatron_grpo_without_vllm": ("trainer.args.use_vllm", args(use_vllm=False)),
    "move_model_batches": ("trainer.args.move_model_batches", args(move_model_batches=2)),
    "reward_model": ("trainer.args.reward_model", args(reward_model=["m"])),
    "reward_model_plugin": ("trainer.args.reward_model_plugin", args(reward_model_plugin=["p"])),
    "multi_turn_scheduler": (
        "trainer.args.multi_turn_scheduler",
        release("4.2.3", **args(multi_turn_scheduler="m")),
    ),
    "gym_env": ("trainer.args.use_gym_env", release("4.2.3", **args(use_gym_env=True))),
    "virtual_pipeline": (
        "trainer.args.virtual_pipeline_model_parallel_size",
        args(virtual_pipeline_model_parallel_size=2),
    ),
    "sync_ref_model": ("trainer.args.sync_ref_model", args(sync_ref_model=True)),
    "async_generate": ("trainer.args.async_generate", args(async_generate=True)),
    "num_iterations": ("trainer.args.num_iterations", args(num_iterations=2)),
    "generation_batch_size_with_steps_per_generation": (
        "trainer.args.generation_batch_size",
        release("4.1.3", **args(generation_batch_size=64)),
    ),
    "dataset_shuffle_false": (
        "trainer.args.dataset_shuffle",
        release("4.1.3", **args(dataset_shuffle=False)),
    ),
    "router_replay": ("trainer.args.router_replay_mode", release("4.0.4", **args(router_replay_mode="R2"))),
    "vllm_enable_lora": ("trainer.args.vllm_enable_lora", release("4.1.3", **args(vllm_enable_lora=True))),
    "vllm_engine_kwargs": (
        "trainer.args.vllm_engine_kwargs",
        release("4.0.4", **args(vllm_engine_kwargs={"a": 1})),
    ),
    "mcore_gated_delta_net": ("cluster.ms_swift", release("4.0.1")),
    "language_model_only": (
        "trainer.args.language_model_only",
        release("4.2.3", **args(language_model_only=True)),
    ),
    "megatron_extra_kwargs": (
        "trainer.args.megatron_extra_kwargs",
        release("4.2.3", **args(megatron_extra_kwargs={"a": 1})),
    ),
    "megatron_ray": ("trainer.args.use_ray", release("4.2.3", **args(use_ray=True))),
    "grpo_teacher_model": ("trainer.args.teacher_model", release("4.3.2", **args(teacher_model="t"))),
    "teacher_kl_coef": ("trainer.args.teacher_kl_coef", release("4.3.2", **args(teacher_kl_coef=0.1))),
    "nccl_comm_warmup": ("trainer.args.nccl_comm_warmup", release("4.4.0", **args(nccl_comm_warmup=True))),
    "bridge_backend": (
        "trainer.args.bridge_backend",
        release("4.4.2", **args(bridge_backend="megatron-bridge")),
    ),
    "megatron_fsdp": ("trainer.args.use_megatron_fsdp", release("4.4.2", **args(use_megatron_fsdp=True))),
    "save_missing_weights": (
        "trainer.args.save_missing_weights",
        release("4.4.2", **args(save_missing_weights=True)),
    ),
    "server_weight_post_processing": ("cluster.ms_swift", release("4.2.3")),
    "multi_node_server_weight_sync": ("cluster.ms_swift", release("4.1.0", trainer={"nodes": 2})),
    "non_thinking_prefix_in_trainer": ("cluster.ms_swift", release("4.2.3")),
    "last_checkpoint_symlink": ("cluster.ms_swift", release("4.5.2")),
    "grpo_resume_skips_right_prompts": ("cluster.ms_swift", release("4.5.3")),
    "grpo_resume_streaming": ("trainer.args.streaming", args(streaming=True)),
    "grpo_loss_not_divided_by_microbatches": (
        "cluster.ms_swift",
        release("4.5.3", trainer={"loss_type": "dapo"}),
    ),
    "beta_zero_saves_reference_memory": ("trainer.beta", {"trainer": {"beta": 0.0}}),
    "async_save_with_save_total_limit": ("trainer.args.async_save", args(async_save=True)),
    "swift_grpo_cached_dataset": (
        "trainer.args.cached_dataset",
        {"trainer": {**SWIFT, "args": {"cached_dataset": "c"}}},
    ),
    "rollout_pipeline_parallel": (
        "rollout.args.vllm_pipeline_parallel_size",
        args("rollout", vllm_pipeline_parallel_size=2),
    ),
    "rollout_reasoning_parser": (
        "rollout.args.vllm_reasoning_parser",
        args("rollout", vllm_reasoning_parser="qwen3"),
    ),
}


CHANGED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "fp8": lambda found: {**found, "quantization_config": {"quant_method": "fp8"}},
    "text": lambda found: {
        **found["text_config"],
        "model_type": "qwen3_5_text",
        "tie_word_embeddings": False,
    },
    "torn": lambda found: {**found, "text_config": {}},
    "untied": lambda found: {**found, "text_config": {**found["text_config"], "tie_word_embeddings": True}},
}
"""Checkpoints of which config.json is not as it was published."""


def resolve(here: Path, overlay: dict[str, Any]) -> dict[str, Any]:
    """Put directories where the table has names."""
    raw = config(overlay)
    model, packages = raw["model"]["path"], raw["cluster"]["environment"]
    if model == "other":
        raw["model"]["path"] = other_model(here, "qwen3_moe", 470 * 10**9)
    elif model in CHANGED:
        raw["model"]["path"] = changed_model(here, "9B", CHANGED[model])
    elif model != "models/absent":
        raw["model"]["path"] = model_directory(here, model)
    if isinstance(packages, dict):
        raw["cluster"]["environment"] = environment(here, **packages)
    return raw


@pytest.mark.parametrize("rule", FIRES)
def test_rule_fires_and_names_its_key(rule: str, tmp_path: Path) -> None:
    key, overlay = FIRES[rule]
    _, report = check_raw(resolve(tmp_path, overlay), resources=TOO_LITTLE)
    found = {problem.id: problem for problem in report.problems}
    assert rule in found, list(found)
    assert key in {problem.key for problem in report.problems if problem.id == rule}
    assert len(found[rule].why.split()) > 4, "a message says why, and what happens otherwise"
    assert found[rule].evidence


def test_a_mapping_given_as_text_is_read_as_well(tmp_path: Path) -> None:
    overlay = benchmarks("gsm8k", extra_eval_args='{"use_cache": "outputs/old"}')
    _, report = check_raw(resolve(tmp_path, overlay))
    assert "benchmarks_start_anew" in {problem.id for problem in report.problems}


@pytest.mark.parametrize(
    "enough",
    [
        {"gres": "gpu:8"},
        {"gres": "gpu:a800:8,nvme:1"},
        {"slurm_extra": "--gpus-per-node=8 --nice=1"},
        {"slurm_extra": "--exclusive"},
        {"gres": ""},
        {"launcher": "local"},
    ],
)
def test_a_job_may_ask_for_its_gpus_in_several_ways(enough: dict[str, str]) -> None:
    _, report = check_raw(config(), resources={"launcher": "slurm", "mem_mb": 10**6} | enough)
    assert report.verdict == "ok", report


@pytest.mark.parametrize("gres", ["gpu", "gpu:4", "gpu:a800:7", "nvme:8"])
def test_a_job_with_too_few_gpus_is_refused(gres: str) -> None:
    asked = {
        "launcher": "slurm",
        "mem_mb": 10**6,
        "gres": gres,
        "slurm_extra": "--gres-flags=enforce-binding",
    }
    _, report = check_raw(config(), resources=asked)
    assert [problem.id for problem in report.problems] == ["job_asks_for_its_gpus"]


def test_a_directory_that_only_begins_like_a_local_one_is_shared() -> None:
    _, report = check_raw(config({"cluster": {"cache": "/runs/cache"}, "trainer": {"nodes": 2}}))
    assert "cache_is_shared" not in {problem.id for problem in report.problems}


def test_every_rule_has_a_case() -> None:
    """Those that read data or checkpoint are in test_preflight_files."""
    of_files = {rule.id for check in CHECKS if check.needs in ("data", "checkpoint") for rule in check.rules}
    assert FIRES.keys() | of_files == all_rules().keys()


def test_the_base_is_fine() -> None:
    _, report = check_raw(config())
    assert report.problems == ()


def test_every_refusal_offers_something_legal(tmp_path: Path) -> None:
    """A refusal without any way out says so in its text instead."""
    without = set()
    for rule, (_, overlay) in FIRES.items():
        _, report = check_raw(resolve(tmp_path / rule, overlay), resources=TOO_LITTLE)
        without |= {p.id for p in report.problems if p.level == "refuse" and not p.legal}
    assert without == {"auto_layout_is_legal"}


def _with(raw: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """The configuration with one value replaced, or its key left out."""
    raw = copy.deepcopy(raw)
    *sections, name = key.split(".")
    inner = raw
    for section in sections:
        inner = inner.setdefault(section, {})
    if value == "leave it out":
        inner.pop(name, None)
    else:
        inner[name] = value
    return raw


@pytest.mark.parametrize("rule", [rule for rule in FIRES if not rule.startswith("job_")])
def test_the_first_legal_value_is_legal(rule: str, tmp_path: Path) -> None:
    """Where it is a value of the key itself; some name another key, or say what to look for."""
    raw = resolve(tmp_path, FIRES[rule][1])
    found = [p for p in check_raw(raw)[1].problems if p.id == rule and p.level == "refuse" and p.legal]
    for problem in found:
        value = problem.legal[0]
        if isinstance(value, str) and value != "leave it out":
            continue
        _, report = check_raw(_with(raw, problem.key, value))
        assert (rule, problem.key) not in {(p.id, p.key) for p in report.problems}, value
        assert "legal_value" not in {p.id for p in report.problems}, value


@pytest.mark.parametrize(("mode", "legal"), [("server", (2, 1)), ("colocate", (2, 1))])
def test_a_size_that_is_offered_splits_the_heads(mode: str, legal: tuple[int, ...], tmp_path: Path) -> None:
    """6 and 3 fit the GPUs, and 9B has 16 heads."""
    model = {"path": model_directory(tmp_path, "9B")}
    rollout = {"mode": mode, "tensor_parallel_size": 12, "gpu_memory_utilization": 0.5}
    _, report = check_raw(config({"model": model, "cluster": {"gpus_per_node": 6}, "rollout": rollout}))
    placed = {"server_fits_its_gpus", "colocate_vllm_tp_divides_world"}
    assert [p.legal for p in report.problems if p.id in placed] == [legal]


SHARED = {"rollout": {"nodes": 0, "gpus": 4}}


@pytest.mark.parametrize(
    ("overlay", "remedies"),
    [
        (
            {"trainer": {"recompute": "none", "micro_batch_size": 2}},
            "recompute optimizer_cpu_offload parallel micro_batch_size tuner nodes",
        ),
        ({"trainer": {"parallel": {"tensor": 1}}, **SHARED}, "optimizer_cpu_offload parallel tuner"),
        ({"trainer": SWIFT}, "deepspeed tuner"),
        ({"trainer": {**SWIFT, "deepspeed": "zero2"}}, "deepspeed tuner nodes"),
    ],
)
def test_every_remedy_makes_the_trainer_smaller(
    overlay: dict[str, Any], remedies: str, tmp_path: Path
) -> None:
    raw = config({"model": {"path": model_directory(tmp_path, "27B")}}, overlay)

    def subject(raw: dict[str, Any]) -> Subject:
        return Subject("main", load_experiments(raw)["main"])

    def peak(raw: dict[str, Any]) -> int:
        return max(rank.peak for rank in trainer_ranks(subject(raw)))

    found = dict(remedy.split(": ") for remedy in helps(subject(raw), "trainer"))
    assert [key.removeprefix("trainer.") for key in found] == remedies.split()
    for key, value in found.items():
        if value != "auto":  # which has checks of its own
            assert peak(_with(raw, key, yaml.safe_load(value))) < peak(raw), key


def test_suppressing_needs_the_id_and_shows_the_reason() -> None:
    overlay = {
        "trainer": {"save_optimizer": False},
        "preflight": {"suppress": {"run_can_be_resumed": "a trial"}},
    }
    _, report = check_raw(config(overlay))
    assert report.verdict == "ok"
    (item,) = report.suppressed
    assert (item.problem.id, item.reason) == ("run_can_be_resumed", "a trial")
    assert report.to_json()["suppressed"][0]["reason"] == "a trial"


def test_a_node_on_which_no_conversion_is_legal_names_one_with_fewer_gpus(tmp_path: Path) -> None:
    model = {"path": model_directory(tmp_path, "27B")}
    overlay = {"cluster": {"gpus_per_node": 5}, "rollout": {"mode": "colocate"}, "trainer": SWIFT}
    _, report = check_raw(config({"model": model}, overlay, {"trainer": {"global_batch_size": 40}}))
    assert "plan_can_be_made" not in {problem.id for problem in report.problems}, "nothing is converted"
    megatron = {"trainer": {"parallel": {"tensor": 1}, "tuner": "lora", "global_batch_size": 40}}
    gpus = {"cluster": {"gpus_per_node": 5}, "rollout": {"tensor_parallel_size": 1, "max_num_seqs": 32}}
    _, report = check_raw(config({"model": model}, gpus, megatron))
    (found,) = [problem for problem in report.problems if problem.level == "refuse"]
    assert (found.id, found.key, found.legal) == ("plan_can_be_made", "cluster.gpus_per_node", (4, 2))


def test_a_check_that_the_plan_needs_cannot_be_switched_off() -> None:
    off = {"server_fits_its_gpus": "a test", "plan_can_be_made": "a test"}
    _, report = check_raw(config({"rollout": {"tensor_parallel_size": 16}, "preflight": {"suppress": off}}))
    (found,) = report.problems
    assert found.key == "preflight.suppress.server_fits_its_gpus"
    assert "rollout.tensor_parallel_size 16" in found.why


EPOCHS = {"train_steps": None, "epochs": 1}


@pytest.mark.parametrize(
    ("trainer", "steps", "level", "legal"),
    [
        ({"save_steps": 10}, [7], "refuse", ([90, 100], "all")),
        ({"save_steps": 10}, [7, 100], "refuse", ([100], "all")),
        ({"save_steps": 10}, [10], "refuse", ([90, 100], "all")),  # saved, and removed again
        ({"save_steps": 30, "save_total_limit": 3}, [100, 90], None, ()),
        ({"save_steps": 10} | EPOCHS, [7], "warn", ("all",)),  # may be the last one
        ({"save_steps": 10} | EPOCHS, [0], "refuse", ("all",)),
        ({"save_steps": 10} | EPOCHS, [20], None, ()),
    ],
)
def test_evaluated_checkpoints_are_those_that_are_kept(
    trainer: dict[str, Any], steps: list[int], level: str | None, legal: tuple[object, ...]
) -> None:
    _, report = check_raw(config({"trainer": trainer, "evaluate": {"checkpoints": steps}}))
    found = [(problem.level, problem.legal) for problem in report.problems]
    assert found == ([(level, legal)] if level else [])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model_type", ["qwen3_5"], "model_type = ['qwen3_5'] must be text"),
        ("model_type", None, "model_type = None must be text"),
        ("text_config", None, "lacks: text_config"),
        ("text_config.num_key_value_heads", 0, "num_key_value_heads = 0 must be an integer, 1 or more"),
        ("text_config.hidden_size", "4096", "hidden_size = '4096' must be an integer"),
        ("text_config.head_dim", -1, "head_dim = -1 must be an integer, 1 or more"),
        ("text_config.layer_types", 3, "layer_types must be a list"),
        ("text_config.rope_parameters", "x", "rope_parameters must be a mapping"),
        ("text_config.rope_parameters.rope_theta", "x", "rope_theta = 'x' must be a number"),
        ("text_config.rope_parameters.mrope_section", 3, "mrope_section must be a list"),
        ("vision_config.patch_size", 0, "patch_size = 0 must be an integer, 1 or more"),
    ],
)
def test_a_wrong_value_in_config_json_is_named(tmp_path: Path, name: str, value: Any, words: str) -> None:
    def change(found: dict[str, Any]) -> dict[str, Any]:
        *sections, key = name.split(".")
        inner = found
        for section in sections:
            inner = inner[section]
        inner[key] = value
        return found

    _, report = check_raw(config({"model": {"path": changed_model(tmp_path, "9B", change)}}))
    (found,) = report.problems
    assert (found.id, found.level, found.key) == ("model_config_is_whole", "refuse", "model.path")
    assert words in found.why


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_config_json_that_is_none_is_refused_whatever_is_switched_off(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    model = {"model": {"path": str(tmp_path)}}
    _, report = check_raw(config(model))
    assert [problem.id for problem in report.problems] == ["model_config_is_whole"]
    _, report = check_raw(config(model, {"preflight": {"suppress": {"model_config_is_whole": "a test"}}}))
    (found,) = report.problems
    assert (found.key, found.level) == ("preflight.suppress.model_config_is_whole", "refuse")


@pytest.mark.parametrize(
    ("overlay", "silent"),
    [
        (args(group_by_length="true"), args(group_by_length="true", padding_free="false")),
        (args(streaming="yes", cached_dataset="c"), args(streaming="no", cached_dataset="c")),
        (args(async_generate="true"), args(async_generate="false")),
        (args("rollout", vllm_max_model_len="100"), args("rollout", vllm_max_model_len="4096")),
    ],
)
def test_arguments_given_as_text_are_read_like_those_of_a_command_line(
    overlay: dict[str, Any], silent: dict[str, Any]
) -> None:
    assert check_raw(config(overlay))[1].verdict == "refuse"
    assert check_raw(config(silent))[1].problems == ()


@pytest.mark.parametrize("word", ["0", "False", "no", "N", "f", "off"])
def test_every_word_for_no_switches_mcore_gdn_off(word: str) -> None:
    overlay = {"cluster": {"env": {"USE_MCORE_GDN": word}}, "trainer": {"tuner": "lora"}}
    _, report = check_raw(config(overlay, parallel(context=2)))
    found = {problem.id for problem in report.problems}
    assert {"adapters_of_every_layer_are_merged", "transformers_gdn_is_not_split"} <= found
    _, report = check_raw(config({"cluster": {"env": {"USE_MCORE_GDN": "yes"}}}))
    assert report.problems == ()


def test_prefix_caching_of_a_colocated_engine_is_the_trainers() -> None:
    given = {"engine_args": {"enable_prefix_caching": False}}
    _, report = check_raw(config({"rollout": {**COLOCATE, **given}}))
    (found,) = report.problems
    assert found.legal == ("trainer.args.vllm_enable_prefix_caching: false",)
    assert check_raw(config({"rollout": given}))[1].problems == ()


@pytest.mark.parametrize("narrow", [{"use_precision_aware_optimizer": "true"}, {}])
def test_a_precision_aware_optimizer_may_be_narrow(narrow: dict[str, Any]) -> None:
    """`optimizer_cpu_offload` asks for it by itself."""
    trainer = {"args": {"exp_avg_dtype": "bf16", **narrow}, "optimizer_cpu_offload": not narrow}
    assert check_raw(config({"trainer": trainer}))[1].problems == ()


def test_a_reason_is_required() -> None:
    _, report = check_raw(config({"preflight": {"suppress": {"run_can_be_resumed": " "}}}))
    assert report.verdict == "refuse"
    assert report.problems[0].key == "preflight.suppress"


def test_errors_in_overlays_name_the_experiment() -> None:
    overlays = {"experiments": {"good": {}, "low": {"trainer": {"global_batch_size": 66}}}}
    _, report = check_raw(config(overlays))
    assert {problem.experiment for problem in report.problems} == {"low"}
    _, report = check_raw(config({"experiments": {"good": {}, "bad": {"trainer": {"bata": 0.1}}}}))
    assert [(problem.experiment, problem.key) for problem in report.problems] == [("bad", "trainer.bata")]


def test_problems_have_one_shape() -> None:
    _, report = check_raw(config({"trainer": {"global_batch_size": 66, "args": {"lr": 1}}}))
    for problem in report.to_json()["problems"]:
        assert set(problem) == {"id", "level", "key", "value", "why", "evidence", "legal", "experiment"}
        assert problem["level"] in ("refuse", "warn")
    json.dumps(report.to_json())


def test_checks_without_a_checkpoint_are_skipped_and_said() -> None:
    _, report = check_raw(config())
    (skipped,) = report.skipped
    assert "training_fits" in skipped.checks
    assert "models/absent/config.json is not there yet" in skipped.why


def test_refusing_carries_the_report() -> None:
    with pytest.raises(Refused, match="global_batch_divisible_by_micro_batch_dp"):
        refuse_faults(config({"trainer": {"global_batch_size": 66}}))


def test_the_nearest_name_is_offered() -> None:
    _, report = check_raw(config(args(num_itreations=1)))
    assert "num_iterations" in report.problems[0].legal


# --- modelled arguments ---

OVERRIDABLE = {
    "attention_backend", "callbacks", "check_model", "dataloader_num_workers", "ddp_backend",
    "gradient_accumulation_fusion", "load_from_cache_file", "log_rollout_offpolicy_metrics", "logging_steps",
    "offload_model", "offload_optimizer", "padding_free", "recompute_method", "recompute_num_layers",
    "save_missing_weights", "sequence_parallel", "sleep_level", "target_modules", "use_distributed_optimizer",
    "use_precision_aware_optimizer", "vllm_enable_lora", "vllm_max_model_len",
}  # fmt: skip
"""Passed with a value of our own, which `args` may replace: they come last on the command line."""

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"cluster": {"device": "cuda"}},
    {"trainer": {"tuner": "lora"}},
    {"trainer": {"backend": "swift", "deepspeed": "zero3", "tuner": "lora"}, "sft": {"backend": "megatron"}},
    {"rollout": {"mode": "colocate"}, "trainer": {"recompute": "full", "epochs": 1, "train_steps": None}},
)


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_every_argument_we_pass_is_a_key_or_may_be_replaced(variant: int) -> None:
    """An argument that is neither would be passed twice without a word when somebody puts it in `args`."""
    raw = merge(read_yaml(ROOT / "config/config.yaml"), VARIANTS[variant])
    commands = generated_commands(load_experiments(raw)["main"])
    for name, section in (("train", "trainer"), ("sft", "sft"), ("rollout", "rollout")):
        if name in commands:
            unknown = {flag for flag in _flags(commands[name]) if not modelled_key(flag, section)}
            assert unknown - OVERRIDABLE == set(), name


def _flags(command: Command) -> set[str]:
    return {word[2:] for word in command.argv if word.startswith("--")}


def test_modelled_keys_are_keys_of_the_configuration() -> None:
    for template in KEY_OF_ARGUMENT.values():
        for key in template.format(section="trainer").split(" and "):
            section, *rest = key.split(".")
            assert section in Config.model_fields, key
            assert rest, key
    assert modelled_key("output_dir", "trainer") == WORKFLOW
    assert modelled_key("max_length", "sft") == "sft.max_length"
    assert modelled_key("router_replay_mode", "trainer") == ""
    assert modelled_key("save_steps", "sft") == WORKFLOW
    assert modelled_key("logging_steps", "sft") == ""
