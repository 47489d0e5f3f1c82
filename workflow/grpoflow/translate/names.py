"""Arguments that one backend of ms-swift 4.6.0 has and the other has not, or reads in another way."""

from __future__ import annotations

# swift argument -> Megatron argument of the same meaning and the same values
SWIFT_TO_MEGATRON = {
    "learning_rate": "lr",
    "warmup_ratio": "lr_warmup_fraction",
    "adam_epsilon": "adam_eps",
    "max_grad_norm": "clip_grad",
    "router_aux_loss_coef": "moe_aux_loss_coeff",
    "run_name": "wandb_exp_name",
    "logging_dir": "tensorboard_dir",
    "sequence_parallel_size": "context_parallel_size",
}
MEGATRON_TO_SWIFT = {megatron: swift for swift, megatron in SWIFT_TO_MEGATRON.items()}

# lr_scheduler_type of transformers -> lr_decay_style of Megatron
SCHEDULES = {
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "inverse_sqrt": "inverse-square-root",
}
DECAY_STYLES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant_with_warmup",
    "inverse-square-root": "inverse_sqrt",
}

TWO_WARMUPS = (
    "given beside warmup_steps, which ms-swift 4.6.0 refuses (swift/trainers/arguments.py:231); it was left "
    "out. Which of them counted before depended on the release of transformers"
)

# attn_impl of transformers -> attention_backend of Megatron
ATTENTION = {
    "flash_attn": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash_3",
    "sdpa": "fused",
    "eager": "unfused",
}
ATTN_IMPL = {
    "flash": "flash_attn",
    "flash_2": "flash_attention_2",
    "flash_3": "flash_attention_3",
    "fused": "sdpa",
    "unfused": "eager",
    "local": "eager",
    "auto": "sdpa",
}

# without effect in Megatron-SWIFT, and why
NO_EFFECT_IN_MEGATRON = {
    "deepspeed": (
        "DeepSpeed belongs to the swift backend. Megatron splits the optimizer state over the data-parallel "
        "ranks by itself (use_distributed_optimizer, as ZeRO-1) and the weights by TP, PP and EP"
    ),
    "move_model_batches": "nothing in Megatron-SWIFT reads it; in the swift backend it belongs to ZeRO-3",
    "zero_hpz_partition_size": "a feature of DeepSpeed",
    "deepspeed_autotp_size": "a feature of DeepSpeed; Megatron has tensor_model_parallel_size",
    "fsdp": "belongs to the swift backend; Megatron has use_megatron_fsdp",
    "fsdp_config": "belongs to the swift backend; Megatron has use_megatron_fsdp",
    "ddp_find_unused_parameters": "an option of PyTorch DDP, which Megatron does not use",
    "ddp_bucket_cap_mb": "an option of PyTorch DDP, which Megatron does not use",
    "ddp_broadcast_buffers": "an option of PyTorch DDP, which Megatron does not use",
    "gradient_checkpointing_kwargs": "an option of PyTorch's checkpointing; Megatron recomputes by itself",
    "use_logits_to_keep": "Megatron computes the loss from vocabulary-parallel logits",
    "use_liger_kernel": "Megatron has fused kernels of its own (cross_entropy_loss_fusion)",
    "use_cache": "there is no generation in the Megatron model",
    "torch_compile": "Megatron models are not compiled as a whole",
    "dataloader_drop_last": "Megatron takes whole steps only",
    "device_map": "Megatron places its layers by rank",
    "max_memory": "Megatron places its layers by rank",
    "enable_flattened_weight_sync": "Megatron-SWIFT has one way of sending weights",
    "vllm_use_async_engine": "Megatron-SWIFT chooses the engine by itself",
    "save_on_each_node": "Megatron writes one distributed checkpoint",
    "safe_serialization": "safetensors are always written (save_safetensors)",
    "logging_first_step": "the first step is always logged",
    "logging_strategy": "Megatron-SWIFT logs by steps",
    "disable_tqdm": "only the progress bar",
    "load_best_model_at_end": "a checkpoint is chosen when it is exported",
}

# only Megatron has it, and it chooses kernels, memory or files, not what is computed
NO_EFFECT_IN_SWIFT = {
    "finetune": "the swift backend starts from the weights in --model and keeps no iteration counter in them",
    "save_safetensors": "the swift backend always writes safetensors",
    "merge_lora": "merge an adapter of the swift backend with `swift export --merge_lora true`",
    "no_load_optim": "the swift backend reads the optimizer with --resume_from_checkpoint",
    "no_load_rng": "the swift backend reads the random state with --resume_from_checkpoint",
    "sequence_parallel": "a companion of tensor parallelism, which the swift backend does not have",
    "use_distributed_optimizer": "DeepSpeed splits the optimizer state there",
    "use_precision_aware_optimizer": "a storage format of Megatron's optimizer",
    "optimizer_offload_fraction": "the swift backend offloads all of it or nothing (zero2_offload)",
    "cross_entropy_loss_fusion": "a fused kernel of Megatron",
    "cross_entropy_fusion_impl": "a fused kernel of Megatron",
    "gradient_accumulation_fusion": "a fused kernel of Megatron",
    "bias_dropout_fusion": "a fused kernel of Megatron",
    "bias_activation_fusion": "a fused kernel of Megatron",
    "apply_rope_fusion": "a fused kernel of Megatron",
    "masked_softmax_fusion": "a fused kernel of Megatron",
    "expert_tensor_parallel_size": "the swift backend does not split experts",
    "pipeline_model_parallel_layout": "the swift backend has no pipeline",
    "decoder_first_pipeline_num_layers": "the swift backend has no pipeline",
    "decoder_last_pipeline_num_layers": "the swift backend has no pipeline",
    "virtual_pipeline_model_parallel_size": "the swift backend has no pipeline",
    "account_for_embedding_in_pipeline_split": "the swift backend has no pipeline",
    "account_for_loss_in_pipeline_split": "the swift backend has no pipeline",
    "moe_permute_fusion": "a fused kernel of Megatron",
    "moe_shared_expert_overlap": "overlaps communication that only expert parallelism has",
    "moe_token_dispatcher_type": "communication of expert parallelism",
    "moe_enable_deepep": "communication of expert parallelism",
    "overlap_grad_reduce": "Megatron's communication schedule",
    "overlap_param_gather": "Megatron's communication schedule",
    "tp_comm_overlap": "Megatron's communication schedule",
    "overlap_p2p_comm": "Megatron's communication schedule",
    "manual_gc": "Megatron's garbage collection schedule",
    "manual_gc_steps": "Megatron's garbage collection schedule",
    "async_save": "Megatron's checkpoint writer",
    "use_persistent_ckpt_worker": "Megatron's checkpoint writer",
    "dist_ckpt_optim_fully_reshardable": "Megatron's checkpoint format",
    "recompute_method": "part of recompute_granularity",
    "recompute_num_layers": "part of recompute_granularity",
    "recompute_modules": "part of recompute_granularity",
    "vit_attn_impl": "--attn_impl covers the vision tower there",
    "accumulate_allreduce_grads_in_fp32": "a storage format of Megatron's gradients",
    "main_grads_dtype": "a storage format of Megatron's optimizer",
    "exp_avg_dtype": "a storage format of Megatron's optimizer",
    "exp_avg_sq_dtype": "a storage format of Megatron's optimizer",
    "nccl_comm_warmup": "Megatron's communicators",
    "mlp_padding_free": "a memory option of Megatron",
    "eval_iters": "the swift backend always evaluates the whole validation set",
}

# environment variables that place processes: grpoflow sets them itself
LAUNCHER_VARIABLES = {
    "NPROC_PER_NODE": "the GPUs of the trainer",
    "NNODES": "the nodes of the trainer",
    "NODE_RANK": "set on every node of the allocation",
    "MASTER_ADDR": "the first node of the trainer in the allocation",
    "MASTER_PORT": "a free port of the job's own block",
    "CUDA_VISIBLE_DEVICES": "the placement of server and trainer",
    "RANK": "set by torchrun",
    "WORLD_SIZE": "set by torchrun",
    "LOCAL_RANK": "set by torchrun",
}
REMOVED_VARIABLES = {
    "SWIFT_PATCH_CONV3D": (
        "nothing reads it since 4.0.4; 4.6.0 patches Conv3d by itself where torch is slow, "
        "2.9.0 <= torch < 2.10 (swift/model/utils.py:292, modelscope/ms-swift#8146)"
    ),
    "SWIFT_USE_MCORE_GDN": (
        "4.0.2 to 4.0.4 only; since 4.1.0 the GatedDeltaNet of megatron-core is the default, and "
        "USE_MCORE_GDN=0 turns it off (modelscope/ms-swift#8126)"
    ),
}
