NPROC_PER_NODE=8 \
swift sft \
    --model Qwen3.5-35B-A3B \
    --tuner_type full \
    --experts_impl grouped_mm \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 32 \
    --deepspeed zero3 \
    --max_length 2048

# Batch of swift sft: the same before and after.
#   256 sequences per optimizer step on 8 GPUs
#
# Carried over:
#   line 1: NPROC_PER_NODE 8 -> NPROC_PER_NODE
#   line 2: --model Qwen3.5-35B-A3B -> --model Qwen3.5-35B-A3B
#   line 3: --tuner_type full -> --tuner_type full
#   line 4: --experts_impl grouped_mm -> --experts_impl grouped_mm
#   line 5: --per_device_train_batch_size 1 -> --per_device_train_batch_size 1
#   line 6: --gradient_accumulation_steps 32 -> --gradient_accumulation_steps 32
#   line 7: --deepspeed zero3 -> --deepspeed zero3
#       ZeRO-3 gathers every weight in each forward and backward pass. A 9B model fits on 80 GB GPUs without
#       splitting weights that way: compare zero2, or Megatron, which splits them by TP (--to megatron). For
#       MoE models use Megatron with expert parallelism (modelscope/ms-swift#8289, #8145)
#   line 8: --max_length 2048 -> --max_length 2048
#
