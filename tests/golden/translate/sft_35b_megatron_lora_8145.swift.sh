PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
NPROC_PER_NODE=4 \
CUDA_VISIBLE_DEVICES=4,5,6,7 \
swift sft \
    --model Qwen/Qwen3.5-35B-A3B \
    --dataset AI-ModelScope/LongAlpaca-12k \
    --load_from_cache_file true \
    --add_non_thinking_prefix true \
    --split_dataset_ratio 0.01 \
    --tuner_type lora \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --deepspeed zero3 \
    --experts_impl grouped_mm \
    --router_aux_loss_coef 1e-6 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 4 \
    --gradient_checkpointing true \
    --num_train_epochs 1 \
    --group_by_length true \
    --freeze_llm false \
    --freeze_vit true \
    --freeze_aligner true \
    --learning_rate 1e-4 \
    --warmup_ratio 0.05 \
    --lr_scheduler_type cosine_with_min_lr \
    --lr_scheduler_kwargs '{"min_lr": 1e-05}' \
    --output_dir megatron_output/Qwen3.5-35B-A3B \
    --eval_steps 200 \
    --save_steps 200 \
    --max_length 8192 \
    --dataloader_num_workers 8 \
    --dataset_num_proc 8 \
    --save_only_model true \
    --attn_impl flash_attn \
    --padding_free false

# Batch of megatron sft: the same before and after.
#   16 sequences per optimizer step on 4 GPUs
#
# Needs a decision:
#   line 16: --expert_model_parallel_size 4 -> --deepspeed zero3
#       the swift backend splits weights only by ZeRO-3, which gathers every expert of a layer on every GPU:
#       expect it to be several times slower than expert parallelism (modelscope/ms-swift#8145)
#
# Re-derived:
#   line 21: --micro_batch_size 1 -> --per_device_train_batch_size 1 --gradient_accumulation_steps 4
#       1 per GPU x 4 GPUs x 4 accumulation steps = 16; all GPUs are data-parallel there
#   line 22: --global_batch_size 16 -> --per_device_train_batch_size 1 --gradient_accumulation_steps 4
#       1 per GPU x 4 GPUs x 4 accumulation steps = 16; all GPUs are data-parallel there
#   line 23: --recompute_granularity full -> --gradient_checkpointing true
#       recomputes whole layers
#   line 35: --min_lr 1e-5 -> --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{"min_lr": 1e-05}'
#   line 42: --no_save_optim true -> --save_only_model true
#       such a run cannot be resumed
#   line 43: --no_save_rng true -> --save_only_model true
#       the random state goes with the optimizer there
#
# Renamed:
#   line 18: --moe_grouped_gemm true -> --experts_impl grouped_mm
#       needs transformers 5
#   line 20: --moe_aux_loss_coeff 1e-6 -> --router_aux_loss_coef 1e-6
#   line 33: --lr 1e-4 -> --learning_rate 1e-4
#   line 34: --lr_warmup_fraction 0.05 -> --warmup_ratio 0.05
#       A share of all optimizer steps: at 0.01 a run of 100 steps has one step of warm-up
#   line 45: --attention_backend flash -> --attn_impl flash_attn
#
# Carried over:
#   line 1: PYTORCH_CUDA_ALLOC_CONF expandable_segments:True -> PYTORCH_CUDA_ALLOC_CONF
#   line 2: NPROC_PER_NODE 4 -> NPROC_PER_NODE
#   line 3: CUDA_VISIBLE_DEVICES 4,5,6,7 -> CUDA_VISIBLE_DEVICES
#   line 5: --model Qwen/Qwen3.5-35B-A3B -> --model Qwen/Qwen3.5-35B-A3B
#   line 8: --dataset AI-ModelScope/LongAlpaca-12k -> --dataset AI-ModelScope/LongAlpaca-12k
#   line 9: --load_from_cache_file true -> --load_from_cache_file true
#   line 10: --add_non_thinking_prefix true -> --add_non_thinking_prefix true
#   line 11: --split_dataset_ratio 0.01 -> --split_dataset_ratio 0.01
#   line 12: --tuner_type lora -> --tuner_type lora
#   line 13: --lora_rank 8 -> --lora_rank 8
#   line 14: --lora_alpha 32 -> --lora_alpha 32
#   line 15: --target_modules all-linear -> --target_modules all-linear
#   line 26: --num_train_epochs 1 -> --num_train_epochs 1
#   line 27: --group_by_length true -> --group_by_length true
#   line 29: --freeze_llm false -> --freeze_llm false
#   line 30: --freeze_vit true -> --freeze_vit true
#   line 31: --freeze_aligner true -> --freeze_aligner true
#   line 36: --output_dir megatron_output/Qwen3.5-35B-A3B -> --output_dir megatron_output/Qwen3.5-35B-A3B
#   line 37: --eval_steps 200 -> --eval_steps 200
#   line 38: --save_steps 200 -> --save_steps 200
#   line 39: --max_length 8192 -> --max_length 8192
#   line 40: --dataloader_num_workers 8 -> --dataloader_num_workers 8
#   line 41: --dataset_num_proc 8 -> --dataset_num_proc 8
#   line 46: --padding_free false -> --padding_free false
#       Padding to the longest sequence of a micro batch costs time; true is the default of Megatron-SWIFT
#
# Dropped:
#   line 6: --save_safetensors true
#       the swift backend always writes safetensors
#   line 7: --merge_lora true
#       merge an adapter of the swift backend with `swift export --merge_lora true`
#   line 17: --moe_permute_fusion true
#       a fused kernel of Megatron
#   line 19: --moe_shared_expert_overlap true
#       overlaps communication that only expert parallelism has
#   line 24: --recompute_method uniform
#       part of recompute_granularity
#   line 25: --recompute_num_layers 1
#       part of recompute_granularity
#   line 28: --finetune true
#       the swift backend starts from the weights in --model and keeps no iteration counter in them
#   line 32: --cross_entropy_loss_fusion true
#       a fused kernel of Megatron
#   line 44: --sequence_parallel true
#       a companion of tensor parallelism, which the swift backend does not have
#
