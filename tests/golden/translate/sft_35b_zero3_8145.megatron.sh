NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen3.5-35B-A3B \
    --tuner_type full \
    --moe_grouped_gemm true \
    --micro_batch_size 1 \
    --global_batch_size 256 \
    --max_length 2048 \
    --num_train_epochs 3 \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1

# Batch of swift sft: the same before and after.
#   256 sequences per optimizer step on 8 GPUs
#
# Needs a decision:
#   line 7: --deepspeed zero3
#       No effect there: DeepSpeed belongs to the swift backend. Megatron splits the optimizer state over the
#       data-parallel ranks by itself (use_distributed_optimizer, as ZeRO-1) and the weights by TP, PP and EP.
#       What ZeRO-3 split over all GPUs has to fit in another way: choose tensor_model_parallel_size,
#       pipeline_model_parallel_size and, for MoE models first of all, expert_model_parallel_size (1 each if
#       left out)
#
# Re-derived:
#   line 5: --per_device_train_batch_size 1 -> --micro_batch_size 1 --global_batch_size 256
#       1 per GPU x 8 GPUs x 32 accumulation steps = 256
#   line 6: --gradient_accumulation_steps 32 -> --micro_batch_size 1 --global_batch_size 256
#       1 per GPU x 8 GPUs x 32 accumulation steps = 256
#
# Renamed:
#   line 4: --experts_impl grouped_mm -> --moe_grouped_gemm true
#       the default of Megatron-SWIFT
#
# Carried over:
#   line 1: NPROC_PER_NODE 8 -> NPROC_PER_NODE
#   line 2: --model Qwen3.5-35B-A3B -> --model Qwen3.5-35B-A3B
#   line 3: --tuner_type full -> --tuner_type full
#   line 8: --max_length 2048 -> --max_length 2048
#
# Not in the script, written out because the defaults differ:
#   --num_train_epochs -> --num_train_epochs 3
#       the default of `swift` is 3, Megatron has none
#   --gradient_checkpointing -> --recompute_granularity full
#       `swift` recomputes every layer by default; `megatron` (selective) is faster and larger
#
