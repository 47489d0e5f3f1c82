"""From `megatron rlhf` or `megatron sft` to the swift backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from . import batch, names
from .translator import Translator


class ToSwift(Translator):
    renamed = names.MEGATRON_TO_SWIFT
    no_effect = names.NO_EFFECT_IN_SWIFT
    handlers: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("micro_batch_size", "global_batch_size", "steps_per_generation", "generation_batch_size"),
            "batch",
        ),
        **dict.fromkeys(
            (
                *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
                "optimizer_cpu_offload",
            ),
            "sharding",
        ),
        "train_iters": "duration",
        "num_train_epochs": "duration",
        "lr_decay_style": "schedule",
        "min_lr": "schedule",
        **dict.fromkeys(("lr_warmup_iters", "lr_warmup_fraction"), "warmup"),
        "recompute_granularity": "recompute",
        "attention_backend": "attention",
        "moe_grouped_gemm": "experts",
        "eval_iters": "evaluation",
        "no_save_optim": "optimizer_state",
        "no_save_rng": "optimizer_state",
        **dict.fromkeys(("mcore_model", "mcore_adapter", "mcore_ref_model", "mcore_ref_adapter"), "mcore"),
        "optimizer": "optimizer",
    }

    def batch(self) -> None:
        """global_batch_size = per_device_train_batch_size x ranks x gradient_accumulation_steps."""
        program, grpo = self.program, batch.is_grpo(self.program)
        spec, mine = batch.to_swift(program), batch.megatron_spec(program)
        target = self.put("per_device_train_batch_size", spec.per_device_train_batch_size)
        target += " " + self.put("gradient_accumulation_steps", spec.gradient_accumulation_steps)
        sharing = 1 if grpo else batch.layout_of(program).cp
        ranks = max(1, spec.world_size // sharing)
        total = spec.per_device_train_batch_size * ranks * spec.gradient_accumulation_steps
        gpus = f"{spec.world_size} GPUs" if sharing == 1 else f"{spec.world_size} / {sharing} GPUs"
        why = (
            f"{spec.per_device_train_batch_size} per GPU x {gpus} x {spec.gradient_accumulation_steps} "
            f"accumulation steps = {total}; "
            + (
                "all GPUs are data-parallel there"
                if sharing == 1
                else "those of a sequence-parallel group share sequences"
            )
        )
        if total != mine.global_batch_size:
            why += f"; {mine.global_batch_size} is no multiple of {ranks}"
        for name in ("micro_batch_size", "global_batch_size"):
            if name not in program.given:
                self.ledger.missing(f"--{name}", "default", target, f"the default of `{program.name}`. {why}")
            self.ledger.settle(name, "re-derived", target, why)
        if not grpo:
            return
        steps = self.put("steps_per_generation", spec.steps_per_generation or 1)
        why = f"counts forward-backward passes there: optimizer steps x {spec.gradient_accumulation_steps}"
        self.ledger.settle("steps_per_generation", "re-derived", steps, why)
        self.ledger.settle("generation_batch_size", "re-derived", steps, why)
        if spec.evaluates:
            target = self.put("per_device_eval_batch_size", spec.per_device_eval_batch_size)
            why = "x GPUs must be a multiple of num_generations_eval (swift/rlhf_trainers/args_mixin.py:232)"
            self.ledger.missing("--per_device_eval_batch_size", "default", target, why)

    def sharding(self) -> None:
        layout = batch.layout_of(self.program)
        split = layout.tp * layout.pp * layout.ep > 1
        stage = ("zero3" if split else "zero2") + ("_offload" if self.value("optimizer_cpu_offload") else "")
        target = self.put("deepspeed", stage)
        why = (
            "the swift backend splits weights only by ZeRO-3"
            if split
            else "the optimizer state is split by ZeRO there"
        )
        if layout.ep > 1:
            why += (
                ", which gathers every expert of a layer on every GPU: expect it to be several times slower "
                "than expert parallelism (modelscope/ms-swift#8145)"
            )
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "expert_model_parallel_size",
        ):
            self.ledger.settle(
                name, "needs a decision" if self.value(name, 1) > 1 else "dropped", target, why
            )
        self.ledger.settle("optimizer_cpu_offload", "re-derived", target)

    def duration(self) -> None:
        steps, epochs = self.value("train_iters"), self.value("num_train_epochs")
        if epochs is not None:
            self.ledger.settle("num_train_epochs", "carried over", self.put("num_train_epochs", epochs))
            why = (
                "Megatron-SWIFT overwrites it by the epochs (swift/megatron/arguments/megatron_args.py:1149)"
            )
            self.ledger.settle("train_iters", "dropped", "", why)
        elif steps is not None:
            self.ledger.settle("train_iters", "renamed", self.put("max_steps", steps))

    def schedule(self) -> None:
        style, minimum = self.value("lr_decay_style", "cosine"), self.value("min_lr", 0)
        kind = names.DECAY_STYLES.get(style)
        if kind is None:
            self.ledger.settle("lr_decay_style", "needs a decision", "", "transformers has no such schedule")
        elif minimum and style == "cosine":
            target = self.put("lr_scheduler_type", "cosine_with_min_lr")
            target += " " + self.put("lr_scheduler_kwargs", json.dumps({"min_lr": minimum}))
            self.ledger.settle("lr_decay_style", "renamed", target)
            self.ledger.settle("min_lr", "re-derived", target)
        else:
            self.ledger.settle("lr_decay_style", "renamed", self.put("lr_scheduler_type", kind))
        if minimum:
            why = f"no minimum for the {style} schedule of transformers"
            self.ledger.settle("min_lr", "needs a decision", "", why)
        self.ledger.settle("min_lr", "dropped", "", "0 is the minimum there too")

    def warmup(self) -> None:
        steps = self.value("lr_warmup_iters")
        if self.value("lr_warmup_fraction") is not None:
            why = "lr_warmup_fraction is given, and counts (swift/megatron/utils/megatron_lm_utils.py:726)"
            self.ledger.settle("lr_warmup_iters", "dropped", "", why)
        elif steps is not None:
            self.ledger.settle("lr_warmup_iters", "renamed", self.put("warmup_steps", steps))

    def recompute(self) -> None:
        wanted = self.value("recompute_granularity", "selective") != "none"
        why = "recomputes whole layers" if wanted else ""
        target = self.put("gradient_checkpointing", wanted)
        self.ledger.settle("recompute_granularity", "re-derived", target, why)

    def attention(self) -> None:
        implementation = names.ATTN_IMPL.get(self.value("attention_backend", ""))
        if implementation:
            self.ledger.settle("attention_backend", "renamed", self.put("attn_impl", implementation))
        else:
            self.ledger.settle("attention_backend", "needs a decision", "", "choose an --attn_impl")

    def experts(self) -> None:
        if self.value("moe_grouped_gemm", True):
            target = self.put("experts_impl", "grouped_mm")
            self.ledger.settle("moe_grouped_gemm", "renamed", target, "needs transformers 5")
        else:
            self.ledger.settle("moe_grouped_gemm", "dropped", "", "a kernel of Megatron; see experts_impl")

    def evaluation(self) -> None:
        if self.value("eval_iters", -1) == 0:
            self.ledger.settle("eval_iters", "re-derived", self.put("eval_strategy", "no"))

    def optimizer_state(self) -> None:
        value = self.value("no_save_optim", False)
        target = self.put("save_only_model", bool(value))
        why = "such a run cannot be resumed" if value else ""
        self.ledger.settle("no_save_optim", "re-derived", target, why)
        self.ledger.settle(
            "no_save_rng", "re-derived", target, "the random state goes with the optimizer there"
        )

    def mcore(self) -> None:
        for name in ("mcore_model", "mcore_adapter", "mcore_ref_model", "mcore_ref_adapter"):
            if name == "mcore_model" and "model" in self.program.given:
                why = "the swift backend reads the directory in --model: are the weights the same?"
            else:
                why = "the swift backend reads Hugging Face directories: see `megatron export --to_hf true`"
            self.ledger.settle(name, "needs a decision", "", why)

    def optimizer(self) -> None:
        if self.value("optimizer") == "adam":
            self.ledger.settle("optimizer", "dropped", "", "AdamW is the default of both")

    def complete(self) -> None:
        if "per_device_train_batch_size" not in self.arguments:
            self.batch()
        if "deepspeed" not in self.arguments and batch.world_size_of(self.program) > 1:
            self.sharding()
            target = f"--deepspeed {self.arguments['deepspeed']}"
            why = (
                "on by default: the optimizer state is split over the data-parallel ranks; ZeRO does it there"
            )
            self.ledger.missing("--use_distributed_optimizer", "default", target, why)
        if "tuner_type" not in self.program.given:
            target = self.put("tuner_type", "full")
            self.ledger.missing(
                "--tuner_type", "default", target, "the default of `megatron` is full, of `swift` lora"
            )
        if batch.is_grpo(self.program) and "use_vllm" not in self.program.given:
            target = self.put("use_vllm", True)
            self.ledger.missing("--use_vllm", "default", target, "true in Megatron, false in `swift`")
