PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
NPROC_PER_NODE=4 \
CUDA_VISIBLE_DEVICES=4,5,6,7 \
megatron sft \
    --model Qwen/Qwen3.5-35B-A3B \
    --save_safetensors true \
    --merge_lora true \
    --dataset AI-ModelScope/LongAlpaca-12k \
    --load_from_cache_file true \
    --add_non_thinking_prefix true \
    --split_dataset_ratio 0.01 \
    --tuner_type lora \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --expert_model_parallel_size 4 \
    --moe_permute_fusion true \
    --moe_grouped_gemm true \
    --moe_shared_expert_overlap true \
    --moe_aux_loss_coeff 1e-6 \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --num_train_epochs 1 \
    --group_by_length true \
    --finetune true \
    --freeze_llm false \
    --freeze_vit true \
    --freeze_aligner true \
    --cross_entropy_loss_fusion true \
    --lr 1e-4 \
    --lr_warmup_fraction 0.05 \
    --min_lr 1e-5 \
    --output_dir megatron_output/Qwen3.5-35B-A3B \
    --eval_steps 200 \
    --save_steps 200 \
    --max_length 8192 \
    --dataloader_num_workers 8 \
    --dataset_num_proc 8 \
    --no_save_optim true \
    --no_save_rng true \
    --sequence_parallel true \
    --attention_backend flash \
    --padding_free false

# Batch of megatron sft: the same before and after.
#   16 sequences per optimizer step on 4 GPUs
#
# Carried over:
#   line 1: PYTORCH_CUDA_ALLOC_CONF expandable_segments:True -> PYTORCH_CUDA_ALLOC_CONF
#   line 2: NPROC_PER_NODE 4 -> NPROC_PER_NODE
#   line 3: CUDA_VISIBLE_DEVICES 4,5,6,7 -> CUDA_VISIBLE_DEVICES
#   line 5: --model Qwen/Qwen3.5-35B-A3B -> --model Qwen/Qwen3.5-35B-A3B
#   line 6: --save_safetensors true -> --save_safetensors true
#   line 7: --merge_lora true -> --merge_lora true
#   line 8: --dataset AI-ModelScope/LongAlpaca-12k -> --dataset AI-ModelScope/LongAlpaca-12k
#   line 9: --load_from_cache_file true -> --load_from_cache_file true
#   line 10: --add_non_thinking_prefix true -> --add_non_thinking_prefix true
#   line 11: --split_dataset_ratio 0.01 -> --split_dataset_ratio 0.01
#   line 12: --tuner_type lora -> --tuner_type lora
#   line 13: --lora_rank 8 -> --lora_rank 8
#   line 14: --lora_alpha 32 -> --lora_alpha 32
#   line 15: --target_modules all-linear -> --target_modules all-linear
#   line 16: --expert_model_parallel_size 4 -> --expert_model_parallel_size 4
#   line 17: --moe_permute_fusion true -> --moe_permute_fusion true
#   line 18: --moe_grouped_gemm true -> --moe_grouped_gemm true
#   line 19: --moe_shared_expert_overlap true -> --moe_shared_expert_overlap true
#   line 20: --moe_aux_loss_coeff 1e-6 -> --moe_aux_loss_coeff 1e-6
#   line 21: --micro_batch_size 1 -> --micro_batch_size 1
#   line 22: --global_batch_size 16 -> --global_batch_size 16
#   line 23: --recompute_granularity full -> --recompute_granularity full
#   line 24: --recompute_method uniform -> --recompute_method uniform
#   line 25: --recompute_num_layers 1 -> --recompute_num_layers 1
#   line 26: --num_train_epochs 1 -> --num_train_epochs 1
#   line 27: --group_by_length true -> --group_by_length true
#   line 28: --finetune true -> --finetune true
#   line 29: --freeze_llm false -> --freeze_llm false
#   line 30: --freeze_vit true -> --freeze_vit true
#   line 31: --freeze_aligner true -> --freeze_aligner true
#   line 32: --cross_entropy_loss_fusion true -> --cross_entropy_loss_fusion true
#   line 33: --lr 1e-4 -> --lr 1e-4
#   line 34: --lr_warmup_fraction 0.05 -> --lr_warmup_fraction 0.05
#       A share of all optimizer steps: at 0.01 a run of 100 steps has one step of warm-up
#   line 35: --min_lr 1e-5 -> --min_lr 1e-5
#   line 36: --output_dir megatron_output/Qwen3.5-35B-A3B -> --output_dir megatron_output/Qwen3.5-35B-A3B
#   line 37: --eval_steps 200 -> --eval_steps 200
#   line 38: --save_steps 200 -> --save_steps 200
#   line 39: --max_length 8192 -> --max_length 8192
#   line 40: --dataloader_num_workers 8 -> --dataloader_num_workers 8
#   line 41: --dataset_num_proc 8 -> --dataset_num_proc 8
#   line 42: --no_save_optim true -> --no_save_optim true
#   line 43: --no_save_rng true -> --no_save_rng true
#   line 44: --sequence_parallel true -> --sequence_parallel true
#   line 45: --attention_backend flash -> --attention_backend flash
#   line 46: --padding_free false -> --padding_free false
#       Padding to the longest sequence of a micro batch costs time; true is the default of Megatron-SWIFT
#
