# CUDA_VISIBLE_DEVICES=0,1 \
# swift rollout \
#     --model output/qwen3d5-sft/checkpoint-1077/ \
#     --vllm_tensor_parallel_size 2 \
#     --port 9000

NPROC_PER_NODE=6 \
CUDA_VISIBLE_DEVICES=2,3,4,5,6,7 \
megatron rlhf \
    --rlhf_type grpo \
    --tuner_type full \
    --model output/qwen3d5-sft/checkpoint-1077/ \
    --dataset my_dataset_grpo_train.json \
    --val_dataset my_dataset_grpo_val.json \
    --external_plugins rewards_plugin.py \
    --reward_funcs format accuracy \
    --reward_weights 0.8 0.2 \
    --max_pixels 1605632 \
    --beta 0.001 \
    --epsilon 0.2 \
    --epsilon_high 0.28 \
    --loss_type grpo \
    --vllm_mode server \
    --vllm_server_host 127.0.0.1 \
    --vllm_server_port 9000 \
    --freeze_aligner false \
    --freeze_vit false \
    --add_non_thinking_prefix true \
    --torch_dtype bfloat16 \
    --load_from_cache_file true \
    --max_length 8096 \
    --max_completion_length 4096 \
    --overlong_filter false \
    --num_train_epochs 5 \
    --micro_batch_size 4 \
    --global_batch_size 192 \
    --steps_per_generation 1 \
    --lr 1e-6 \
    --save_strategy steps \
    --eval_steps 5 \
    --save_steps 5 \
    --save_total_limit 3 \
    --logging_steps 1 \
    --output_dir output/qwen3d5-grpo \
    --lr_warmup_fraction 0.01 \
    --dataloader_num_workers 4 \
    --num_generations 8 \
    --temperature 1.0 \
    --log_completions true \
    --num_iterations 1 \
    --async_generate false \
    --attention_backend flash \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1

# Batch of swift rlhf: the same before and after.
#   192 completions (24 prompts) per optimizer step, 192 (24 prompts) per rollout, 8 completions per prompt, on 6 GPUs
#
# Needs a decision:
#   line 1 (swift rollout): `swift rollout`
#       commented out: bash does not run it. It is read all the same, since it was started somehow, in another
#       shell for example
#   line 51 (swift rlhf): --deepspeed zero3
#       No effect there: DeepSpeed belongs to the swift backend. Megatron splits the optimizer state over the
#       data-parallel ranks by itself (use_distributed_optimizer, as ZeRO-1) and the weights by TP, PP and EP.
#       What ZeRO-3 split over all GPUs has to fit in another way: choose tensor_model_parallel_size,
#       pipeline_model_parallel_size and, for MoE models first of all, expert_model_parallel_size (1 each if
#       left out)
#
# Re-derived:
#   line 36 (swift rlhf): --per_device_train_batch_size 4 -> --micro_batch_size 4 --global_batch_size 192
#       4 per GPU x 6 GPUs x 8 accumulation steps = 192
#   line 39 (swift rlhf): --gradient_accumulation_steps 8 -> --micro_batch_size 4 --global_batch_size 192
#       4 per GPU x 6 GPUs x 8 accumulation steps = 192
#
# Renamed:
#   line 38 (swift rlhf): --learning_rate 1e-6 -> --lr 1e-6
#   line 47 (swift rlhf): --warmup_ratio 0.01 -> --lr_warmup_fraction 0.01
#       A share of all optimizer steps: at 0.01 a run of 100 steps has one step of warm-up
#   line 55 (swift rlhf): --attn_impl flash_attn -> --attention_backend flash
#       of the language model; the vision tower has --vit_attn_impl, flash attention by default
#
# Carried over:
#   line 1 (swift rollout): CUDA_VISIBLE_DEVICES 0,1 -> CUDA_VISIBLE_DEVICES
#   line 3 (swift rollout): --model output/qwen3d5-sft/checkpoint-1077/ -> --model output/qwen3d5-sft/checkpoint-1077/
#   line 4 (swift rollout): --vllm_tensor_parallel_size 2 -> --vllm_tensor_parallel_size 2
#   line 5 (swift rollout): --port 9000 -> --port 9000
#   line 7 (swift rlhf): NPROC_PER_NODE 6 -> NPROC_PER_NODE
#   line 8 (swift rlhf): CUDA_VISIBLE_DEVICES 2,3,4,5,6,7 -> CUDA_VISIBLE_DEVICES
#   line 10 (swift rlhf): --rlhf_type grpo -> --rlhf_type grpo
#   line 11 (swift rlhf): --tuner_type full -> --tuner_type full
#   line 12 (swift rlhf): --model output/qwen3d5-sft/checkpoint-1077/ -> --model output/qwen3d5-sft/checkpoint-1077/
#   line 13 (swift rlhf): --dataset my_dataset_grpo_train.json -> --dataset my_dataset_grpo_train.json
#   line 14 (swift rlhf): --val_dataset my_dataset_grpo_val.json -> --val_dataset my_dataset_grpo_val.json
#   line 15 (swift rlhf): --external_plugins rewards_plugin.py -> --external_plugins rewards_plugin.py
#   line 16 (swift rlhf): --reward_funcs format accuracy -> --reward_funcs format accuracy
#   line 17 (swift rlhf): --reward_weights 0.8 0.2 -> --reward_weights 0.8 0.2
#   line 18 (swift rlhf): --max_pixels 1605632 -> --max_pixels 1605632
#       As an argument it scales images in this program alone (swift/template/base.py:442): a server without
#       it sees other images than the trainer
#   line 19 (swift rlhf): --beta 0.001 -> --beta 0.001
#       Above 0 a reference model is held in memory, and one more forward pass is made per completion
#   line 20 (swift rlhf): --epsilon 0.2 -> --epsilon 0.2
#   line 21 (swift rlhf): --epsilon_high 0.28 -> --epsilon_high 0.28
#   line 22 (swift rlhf): --loss_type grpo -> --loss_type grpo
#   line 24 (swift rlhf): --vllm_mode server -> --vllm_mode server
#   line 25 (swift rlhf): --vllm_server_host 127.0.0.1 -> --vllm_server_host 127.0.0.1
#   line 26 (swift rlhf): --vllm_server_port 9000 -> --vllm_server_port 9000
#   line 27 (swift rlhf): --freeze_aligner false -> --freeze_aligner false
#   line 28 (swift rlhf): --freeze_vit false -> --freeze_vit false
#       Trains the vision tower too (default: frozen): more optimizer state, and activations for every image
#       patch. Keep it only if the reward depends on seeing better
#   line 29 (swift rlhf): --add_non_thinking_prefix true -> --add_non_thinking_prefix true
#       It is on by default, and it touches only answers given as text (swift/template/base.py:1308);
#       completions come as token ids, and enable_thinking decides on their prefix
#       (swift/rlhf_trainers/utils.py:719): that one must be the same for server and trainer. Before 4.3.0 the
#       trainer left the prefix out of its log-probabilities (modelscope/ms-swift#9519)
#   line 30 (swift rlhf): --torch_dtype bfloat16 -> --torch_dtype bfloat16
#   line 31 (swift rlhf): --load_from_cache_file true -> --load_from_cache_file true
#   line 32 (swift rlhf): --max_length 8096 -> --max_length 8096
#       With max_completion_length the server needs vllm_max_model_len 12192; without it vLLM plans for the
#       model's own maximum, and a smaller one cuts completions without a word; 8192 may be meant
#   line 33 (swift rlhf): --max_completion_length 4096 -> --max_completion_length 4096
#   line 34 (swift rlhf): --overlong_filter false -> --overlong_filter false
#   line 35 (swift rlhf): --num_train_epochs 5 -> --num_train_epochs 5
#   line 40 (swift rlhf): --save_strategy steps -> --save_strategy steps
#   line 42 (swift rlhf): --eval_steps 5 -> --eval_steps 5
#       Each evaluation generates num_generations completions for every validation prompt; training waits
#   line 43 (swift rlhf): --save_steps 5 -> --save_steps 5
#       A full checkpoint with optimizer state is about 16 bytes per parameter (9B: 144 GB), written that
#       often; it only bounds the work that a failure can cost: 50 is plenty
#   line 44 (swift rlhf): --save_total_limit 3 -> --save_total_limit 3
#   line 45 (swift rlhf): --logging_steps 1 -> --logging_steps 1
#   line 46 (swift rlhf): --output_dir output/qwen3d5-grpo -> --output_dir output/qwen3d5-grpo
#   line 48 (swift rlhf): --dataloader_num_workers 4 -> --dataloader_num_workers 4
#   line 49 (swift rlhf): --num_generations 8 -> --num_generations 8
#   line 50 (swift rlhf): --temperature 1.0 -> --temperature 1.0
#   line 52 (swift rlhf): --log_completions true -> --log_completions true
#   line 53 (swift rlhf): --num_iterations 1 -> --num_iterations 1
#   line 54 (swift rlhf): --async_generate false -> --async_generate false
#
# Not in the script, written out because the defaults differ:
#   --gradient_checkpointing -> --recompute_granularity full
#       `swift` recomputes every layer by default; `megatron` (selective) is faster and larger
#
# Dropped:
#   line 23 (swift rlhf): --use_vllm true
#       no effect there: Megatron GRPO always generates with vLLM
#   line 37 (swift rlhf): --per_device_eval_batch_size 4
#       evaluation takes micro_batch_size and global_batch_size there
#   line 41 (swift rlhf): --eval_strategy steps
#       Megatron evaluates every eval_steps, or each epoch with --save_strategy epoch
#
