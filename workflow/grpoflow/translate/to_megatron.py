"""From `swift rlhf` or `swift sft` to Megatron-SWIFT."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from grpoflow.plan.layout import LayoutSpec

from . import batch, names
from .translator import Translator


class ToMegatron(Translator):
    renamed = names.SWIFT_TO_MEGATRON
    no_effect = names.NO_EFFECT_IN_MEGATRON
    handlers: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            (
                *("per_device_train_batch_size", "gradient_accumulation_steps"),
                *("steps_per_generation", "generation_batch_size"),
            ),
            "batch",
        ),
        "per_device_eval_batch_size": "eval_batch",
        "max_steps": "duration",
        "num_train_epochs": "duration",
        "lr_scheduler_type": "schedule",
        "lr_scheduler_kwargs": "schedule",
        **dict.fromkeys(("warmup_steps", "warmup_ratio"), "warmup"),
        "gradient_checkpointing": "recompute",
        "attn_impl": "attention",
        "experts_impl": "experts",
        "use_vllm": "vllm",
        "eval_strategy": "evaluation",
        "save_strategy": "saving",
        "save_only_model": "optimizer_state",
        "save_total_limit": "checkpoints_kept",
        "resume_from_checkpoint": "resume",
        "optim": "optimizer",
        "num_iterations": "iterations",
        "deepspeed": "sharding",
        "reward_model": "reward",
    }

    def layout(self) -> LayoutSpec:
        size = max(1, self.value("sequence_parallel_size", 1))
        return LayoutSpec(batch.world_size_of(self.program), cp=size)

    def batch(self) -> None:
        """per_device_train_batch_size x ranks x gradient_accumulation_steps = global_batch_size."""
        program, grpo = self.program, batch.is_grpo(self.program)
        spec = batch.to_megatron(program, self.layout())
        micro = self.put("micro_batch_size", spec.micro_batch_size)
        total = self.put("global_batch_size", spec.global_batch_size)
        given = batch.swift_spec(program).per_device_train_batch_size
        formula = batch.swift_formula(program)
        why = formula
        if spec.micro_batch_size != given:
            why = f"{formula}; the largest micro batch up to {given} that Megatron-SWIFT accepts with it"
        target = f"{micro} {total}"
        steps = ""
        if grpo:
            steps = self.put("steps_per_generation", spec.steps_per_generation or 1)
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
            if name not in program.given:
                self.ledger.missing(
                    f"--{name}", "default", target, f"the default of `{program.name}`. {formula}"
                )
            self.ledger.settle(name, "re-derived", target, why)
        rollout = batch.numbers_of(program).rollout
        why = f"counts optimizer steps there, forward-backward passes here; {rollout} completions per rollout"
        self.ledger.settle("steps_per_generation", "re-derived", steps, why)
        why = f"{rollout} completions per rollout = {spec.global_batch_size} x {spec.steps_per_generation}"
        self.ledger.settle("generation_batch_size", "re-derived", steps, why)

    def eval_batch(self) -> None:
        why = "evaluation takes micro_batch_size and global_batch_size there"
        self.ledger.settle("per_device_eval_batch_size", "dropped", "", why)

    def duration(self) -> None:
        steps, epochs = self.value("max_steps", -1), self.value("num_train_epochs")
        if steps > 0:
            self.ledger.settle("max_steps", "renamed", self.put("train_iters", steps))
            self.ledger.settle("num_train_epochs", "dropped", "", "max_steps is given, and counts")
            return
        if self.unclear("max_steps"):
            return
        self.ledger.settle("max_steps", "dropped", "", "not positive: the epochs count")
        if epochs is None and "num_train_epochs" in self.program.given:
            return
        default = epochs is None
        epochs = 3.0 if default else epochs
        target = self.put("num_train_epochs", ceil(epochs))
        if default:
            why = "the default of `swift` is 3, Megatron has none"
            self.ledger.missing("--num_train_epochs", "default", target, why)
        elif epochs == int(epochs):
            self.ledger.settle("num_train_epochs", "carried over", target)
        else:
            why = "Megatron takes whole epochs: give --train_iters for a part of one"
            self.ledger.settle("num_train_epochs", "needs a decision", target, why)

    def schedule(self) -> None:
        kind = self.value("lr_scheduler_type", "cosine")
        style = names.SCHEDULES.get(kind)
        options = self.value("lr_scheduler_kwargs", {})
        options = dict(options) if isinstance(options, dict) else {}
        if style is None:
            why = f"Megatron has {', '.join(dict.fromkeys(names.SCHEDULES.values()))} and WSD"
            self.ledger.settle("lr_scheduler_type", "needs a decision", "", why)
        else:
            self.ledger.settle("lr_scheduler_type", "renamed", self.put("lr_decay_style", style))
        minimum = options.pop("min_lr", None)
        target = "" if minimum is None else self.put("min_lr", minimum)
        if options or minimum is None:
            self.ledger.settle(
                "lr_scheduler_kwargs", "needs a decision", target, f"no counterpart: {', '.join(options)}"
            )
        self.ledger.settle("lr_scheduler_kwargs", "re-derived", target)

    def warmup(self) -> None:
        steps = self.value("warmup_steps")
        if not steps:
            self.ledger.settle("warmup_steps", "dropped", "", "0 is the default")
            return
        self.ledger.settle("warmup_ratio", "needs a decision", "", names.TWO_WARMUPS)
        if steps < 1:
            target = self.put("lr_warmup_fraction", steps)
            self.ledger.settle("warmup_steps", "re-derived", target, "below 1 it is a share of all steps")
        else:
            self.ledger.settle("warmup_steps", "renamed", self.put("lr_warmup_iters", int(steps)))

    def recompute(self) -> None:
        if self.value("gradient_checkpointing", True):
            target = self.put("recompute_granularity", "full")
            target += (
                " " + self.put("recompute_method", "uniform") + " " + self.put("recompute_num_layers", 1)
            )
            why = "recomputes every layer, as the swift backend does; `selective` is faster if memory allows"
        else:
            target, why = self.put("recompute_granularity", "none"), ""
        self.ledger.settle("gradient_checkpointing", "re-derived", target, why)

    def attention(self) -> None:
        backend = names.ATTENTION.get(self.value("attn_impl", ""))
        if backend:
            why = "of the language model; the vision tower has --vit_attn_impl, flash attention by default"
            self.ledger.settle("attn_impl", "renamed", self.put("attention_backend", backend), why)
        else:
            self.ledger.settle("attn_impl", "needs a decision", "", "choose an --attention_backend")

    def experts(self) -> None:
        if self.value("experts_impl") == "grouped_mm":
            target = self.put("moe_grouped_gemm", True)
            self.ledger.settle("experts_impl", "renamed", target, "the default of Megatron-SWIFT")
        else:
            self.ledger.settle(
                "experts_impl", "dropped", "", "a kernel of transformers; see moe_grouped_gemm"
            )

    def vllm(self) -> None:
        if self.value("use_vllm", True):
            self.ledger.settle(
                "use_vllm", "dropped", "", "no effect there: Megatron GRPO always generates with vLLM"
            )
        else:
            why = "Megatron GRPO generates with vLLM only: choose --vllm_mode server or colocate"
            self.ledger.settle("use_vllm", "needs a decision", "", why)

    def evaluation(self) -> None:
        kind = self.value("eval_strategy")
        if kind == "no":
            self.ledger.settle("eval_strategy", "re-derived", self.put("eval_iters", 0))
        elif kind == "steps" or (kind == "epoch" and self.value("save_strategy") == "epoch"):
            why = "Megatron evaluates every eval_steps, or each epoch with --save_strategy epoch"
            self.ledger.settle("eval_strategy", "dropped", "", why)
        else:
            why = "Megatron evaluates by steps, or with --save_strategy epoch after each epoch"
            self.ledger.settle("eval_strategy", "needs a decision", "", why)

    def saving(self) -> None:
        if self.value("save_strategy") in ("no", "best"):
            why = "Megatron saves by steps or by epoch: choose --save_steps"
            self.ledger.settle("save_strategy", "needs a decision", "", why)

    def optimizer_state(self) -> None:
        value = self.value("save_only_model")
        if value is not None:
            target = self.put("no_save_optim", value) + " " + self.put("no_save_rng", value)
            why = "such a run cannot be resumed" if value else ""
            self.ledger.settle("save_only_model", "re-derived", target, why)

    def checkpoints_kept(self) -> None:
        if self.value("save_total_limit", 2) < 2:
            target = self.put("save_total_limit", 2)
            self.ledger.settle(
                "save_total_limit",
                "re-derived",
                target,
                "Megatron-SWIFT keeps at least 2 (megatron_args.py:913)",
            )

    def resume(self) -> None:
        why = (
            "a checkpoint of the swift backend holds no Megatron optimizer: start from its weights by "
            "--model, or resume a Megatron checkpoint with --mcore_model ... --finetune false"
        )
        self.ledger.settle("resume_from_checkpoint", "needs a decision", "", why)

    def optimizer(self) -> None:
        if str(self.value("optim", "")).startswith("adamw_torch"):
            why = "the default of both: --optimizer adam is AdamW"
            self.ledger.settle("optim", "dropped", "", why)

    def iterations(self) -> None:
        if self.value("num_iterations", 1) > 1:
            why = "Megatron GRPO uses each rollout once; --steps_per_generation makes more steps of one"
            self.ledger.settle("num_iterations", "needs a decision", "", why)

    def sharding(self) -> None:
        why = self.no_effect["deepspeed"]
        if "zero3" in str(self.value("deepspeed", "")):
            why = (
                f"No effect there: {why}. What ZeRO-3 split over all GPUs has to fit in another way: choose "
                "tensor_model_parallel_size, pipeline_model_parallel_size and, for MoE models first of all, "
                "expert_model_parallel_size (1 each if left out)"
            )
            self.ledger.settle("deepspeed", "needs a decision", "", why, advise=False)

    def reward(self) -> None:
        why = (
            "no effect there: the trainer sets every reward model plugin to None, so this part of the reward "
            "would be missing; write the model call into a reward function"
        )
        self.ledger.settle("reward_model", "needs a decision", "", why)

    def complete(self) -> None:
        if "global_batch_size" not in self.arguments:
            self.batch()
        if not {"train_iters", "num_train_epochs"} & {*self.arguments, *self.program.given}:
            self.duration()
        if "tuner_type" not in self.program.given:
            target = self.put("tuner_type", "lora")
            self.ledger.missing(
                "--tuner_type", "default", target, "the default of `swift` is lora, of `megatron` full"
            )
        if "gradient_checkpointing" not in self.program.given:
            self.recompute()
            target = f"--recompute_granularity {self.arguments['recompute_granularity']}"
            why = "`swift` recomputes every layer by default; `megatron` (selective) is faster and larger"
            self.ledger.missing("--gradient_checkpointing", "default", target, why)
        if batch.is_grpo(self.program) and "vllm_mode" not in self.program.given:
            why = "Megatron GRPO generates with vLLM only: choose server or colocate"
            self.ledger.missing("--vllm_mode", "needs a decision", "", why)
        if self.value("group_by_length") and "padding_free" not in self.program.given:
            target = self.put("padding_free", False)
            self.ledger.missing(
                "--padding_free", "default", target, "true in Megatron, which refuses it with group_by_length"
            )
