"""Which arguments of ms-swift are keys of the configuration, and which the workflow sets by itself."""

from __future__ import annotations

KEY_OF_ARGUMENT = {
    # model
    "model": "model.path",
    "model_type": "model.model_type",
    "template": "model.template",
    "system": "model.system",
    "enable_thinking": "model.enable_thinking",
    "torch_dtype": "model.torch_dtype",
    "bf16": "model.torch_dtype",
    "fp16": "model.torch_dtype",
    # data and rewards
    "dataset": "data.train",
    "truncation_strategy": "data.truncation_strategy",
    "dataset_num_proc": "data.num_proc",
    "external_plugins": "rewards.plugin",
    "reward_funcs": "rewards.functions",
    "reward_weights": "rewards.weights",
    # what is trained, and how
    "tuner_type": "{section}.tuner",
    "lora_rank": "{section}.lora_rank",
    "lora_alpha": "{section}.lora_alpha",
    "freeze_vit": "{section}.freeze_vit",
    "freeze_aligner": "{section}.freeze_aligner",
    "tensor_model_parallel_size": "{section}.parallel.tensor",
    "pipeline_model_parallel_size": "{section}.parallel.pipeline",
    "context_parallel_size": "{section}.parallel.context",
    "expert_model_parallel_size": "{section}.parallel.expert",
    "expert_tensor_parallel_size": "{section}.parallel.expert_tensor",
    "deepspeed": "{section}.deepspeed",
    "recompute_granularity": "{section}.recompute",
    "gradient_checkpointing": "{section}.recompute",
    "optimizer_cpu_offload": "{section}.optimizer_cpu_offload",
    "micro_batch_size": "{section}.micro_batch_size",
    "per_device_train_batch_size": "{section}.micro_batch_size",
    "global_batch_size": "{section}.global_batch_size",
    "gradient_accumulation_steps": "{section}.global_batch_size",
    "lr": "{section}.learning_rate",
    "learning_rate": "{section}.learning_rate",
    "lr_decay_style": "{section}.lr_schedule",
    "lr_scheduler_type": "{section}.lr_schedule",
    "lr_warmup_iters": "{section}.warmup_steps",
    "warmup_steps": "{section}.warmup_steps",
    "weight_decay": "{section}.weight_decay",
    "adam_beta2": "{section}.adam_beta2",
    "train_iters": "{section}.train_steps",
    "max_steps": "{section}.train_steps",
    "num_train_epochs": "{section}.epochs",
    "seed": "{section}.seed",
    # GRPO
    "num_generations": "trainer.num_generations",
    "steps_per_generation": "trainer.steps_per_generation",
    "max_completion_length": "trainer.max_completion_length",
    "loss_type": "trainer.loss_type",
    "beta": "trainer.beta",
    "epsilon": "trainer.epsilon",
    "epsilon_high": "trainer.epsilon_high",
    "overlong_filter": "trainer.overlong_filter",
    "dynamic_sample": "trainer.dynamic_sample",
    "log_completions": "trainer.log_completions",
    "save_steps": "trainer.save_steps",
    "save_total_limit": "trainer.save_total_limit",
    "no_save_optim": "trainer.save_optimizer",
    "no_save_rng": "trainer.save_optimizer",
    "save_only_model": "trainer.save_optimizer",
    "logging_steps": "trainer.logging_steps",
    "report_to": "tracking.report_to",
    "wandb_project": "tracking.project",
    "swanlab_project": "tracking.project",
    # rollout
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "vllm_mode": "rollout.mode",
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "vllm_data_parallel_size": "rollout.nodes and rollout.gpus",
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_max_num_seqs": "rollout.max_num_seqs",
    "vllm_enforce_eager": "rollout.enforce_eager",
    "vllm_limit_mm_per_prompt": "rollout.limit_images",
    "vllm_max_lora_rank": "trainer.lora_rank",
    "vllm_engine_kwargs": "rollout.engine_args",
    "vllm_server_timeout": "rollout.startup_timeout",
}
"""Key of the configuration that stands for an argument of any of the commands."""

SET_BY_THE_WORKFLOW = {
    "add_version", "finetune", "host", "logging_dir", "mcore_adapter", "mcore_model",
    "no_load_optim", "no_load_rng", "output_dir", "port", "resume_from_checkpoint", "rlhf_type",
    "split_dataset_ratio", "use_vllm", "vllm_server_base_url", "vllm_server_group_port", "vllm_server_host",
    "vllm_server_port",
}  # fmt: skip
"""Follows from the stage, the placement and the run directory."""

BENCHMARKS = "evaluate.benchmarks"
OF_BENCHMARKS = {
    "eval_dataset": "evaluate.benchmarks.datasets",
    "eval_limit": "evaluate.benchmarks.limit",
    "infer_backend": "evaluate.engine",
    "max_batch_size": "evaluate.batch_size",
    "vllm_data_parallel_size": "cluster.gpus_per_node",
    # EvalScope sends its own with every question
    **dict.fromkeys(("temperature", "top_k", "top_p"), "evaluate.benchmarks.args.eval_generation_config"),
}
ONLY_NATIVE = {"adapters", "eval_backend", "eval_output_dir", "eval_url", "host", "port", "result_path"}
"""The stage reads the files of EvalScope's own backend, about a model that `swift eval` serves."""

WORKFLOW = "the workflow"
OF_GRPO = ("trainer.", "rollout.", "tracking.")


def modelled_key(argument: str, section: str) -> str:
    """The key that stands for an argument in the `args` of a section ("trainer", "sft", "rollout",
    BENCHMARKS).

    Returns WORKFLOW for an argument that the workflow sets by itself, "" for one that may be passed through.
    """
    if section == BENCHMARKS:
        return _of_benchmarks(argument)
    if argument == "max_length":
        return "sft.max_length" if section == "sft" else "data.max_length"
    if argument in SET_BY_THE_WORKFLOW or (argument == "cached_dataset" and section == "sft"):
        return WORKFLOW
    key = KEY_OF_ARGUMENT.get(argument, "")
    if section == "sft" and key.startswith(OF_GRPO):
        return "" if argument == "logging_steps" else WORKFLOW  # the stage keeps its last checkpoint only
    return key.format(section="trainer" if section == "rollout" else section)


def _of_benchmarks(argument: str) -> str:
    if argument in ONLY_NATIVE:
        return WORKFLOW
    key = OF_BENCHMARKS.get(argument, KEY_OF_ARGUMENT.get(argument, ""))
    return key if key.startswith(("model.", "evaluate.", "cluster.", "rollout.")) else ""
