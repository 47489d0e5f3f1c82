"""Stage export_hf: the trained model as a Hugging Face directory, checked against what was trained."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpoflow.checkpoints import TRACKER
from grpoflow.commands.convert import to_hf
from grpoflow.config import Config
from grpoflow.fidelity import account, account_adapter, check_files
from grpoflow.files import fingerprint, read_json, sha256, write_text
from grpoflow.plan.conversion import conversion_of

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish, manifest_of, number
from .convert import conversion_ranks, start_directory
from .inside import compare_logits, compare_tensors
from .models import assemble_adapter, assemble_model, chosen_checkpoint


def export_hf(stage: Stage) -> None:
    """Copy the trained weights or their adapter, compare them with the Megatron checkpoint and in logits,
    write a model card.

    Raises:
        StageFailed: another checkpoint was evaluated, or there is no adapter.
        CheckpointError, ProgramFailed: a tensor or file is missing or differs, or the model does not load.
    """
    config = stage.config
    start = start_directory(stage)
    train, evaluation = manifest_of(stage.input["train"]), manifest_of(stage.input["evaluation"])
    dataset = Path(stage.input["dataset"])
    with attempt_directory(stage) as work:
        checkpoint = chosen_checkpoint(config, train)
        if evaluation["checkpoint"] != str(checkpoint):
            raise StageFailed(
                f"the evaluation is of {evaluation['checkpoint']}, not of {checkpoint}: remove "
                f"{stage.input['evaluation']} to evaluate again"
            )
        adapter = config.export.lora == "adapter"
        model = work / "model"
        whole = work / "merged" if adapter else model
        assemble_model(stage, checkpoint, start, whole)
        accounting = account(whole, start, config.model.torch_dtype, may_lack_mtp=leaves_mtp_out(config))
        checks: dict[str, Any] = {"accounting": asdict(accounting), "notes": check_files(whole, start)}
        trained = whole
        if config.trainer.tuner == "full":
            trained = checkpoint
            if (checkpoint / TRACKER).is_file():
                # the weights beside the optimizer, read by another way than the trainer's own export
                trained = work / "converted"
                parallel = conversion_of(config).parallel
                commands = [
                    to_hf(config, checkpoint, start, trained, ranks, parallel)
                    for ranks in conversion_ranks(config)
                ]
                stage.run("to_hf", commands)
            compare_tensors(stage, model, trained)
            checks["equal_to"] = str(checkpoint)
        prompts, logits = dataset.parent / "val.jsonl", work / "logits.json"
        if adapter:
            assemble_adapter(checkpoint, start, model)
            checks["adapter"] = account_adapter(
                model, start, config.trainer.lora_rank, config.trainer.lora_alpha
            )
            compare_logits(stage, start, trained, prompts, logits, model)
        else:
            compare_logits(stage, model, trained, prompts, logits)
        checks["logits"] = read_json(logits)
        checks["loaded_by"] = loaded_by(model, evaluation, adapter=adapter)
        for unused in ("converted", "merged"):
            shutil.rmtree(work / unused, ignore_errors=True)
        write_text(
            model / "README.md", model_card(stage, checkpoint, train, evaluation, manifest_of(dataset))
        )
        files = {path.name: sha256(path) for path in sorted(model.iterdir())}
        finish(stage, work, model="model", checkpoint=str(checkpoint), checks=checks, sha256=files)


def loaded_by(model: Path, evaluation: Mapping[str, Any], *, adapter: bool) -> list[str]:
    """What loaded these very files: compare_logits, and the engine that the evaluation generated with where
    its directory was the same."""
    found = ["peft" if adapter else "transformers"]
    if evaluation.get("engine") == "vllm" and evaluation["fingerprint"] == fingerprint(model):
        found.append("vllm")
    return found


def leaves_mtp_out(config: Config) -> bool:
    """Whether the trainer writes no multi-token prediction: Transformers does not build it for Qwen3.5, and
    Megatron-SWIFT copies it from the start unless it is told otherwise."""
    return config.trainer.backend == "swift" or config.trainer.args.get("save_missing_weights") is False


def model_card(
    stage: Stage,
    checkpoint: Path,
    train: dict[str, Any],
    evaluation: dict[str, Any],
    dataset: dict[str, Any],
) -> str:
    """Describe the model by the facts of its run."""
    config, sampled = stage.config, evaluation["sampled"]
    difference = sampled["difference"]
    adapter = config.export.lora == "adapter"
    lines = [
        "---",
        f"library_name: {'peft' if adapter else 'transformers'}",
        "tags: [grpo, ms-swift, grpoflow]",
        "---",
        "",
        f"# {stage.subject}",
        "",
        f"GRPO with ms-swift ({config.trainer.backend}): {checkpoint.name.rpartition('-')[2]} steps of "
        f"{config.trainer.global_batch_size} completions ({config.trainer.num_generations} per prompt), "
        f"learning rate {config.trainer.learning_rate}, beta {config.trainer.beta}, "
        f"seed {config.trainer.seed}.",
        "",
        f"Started from: `{config.model.path}`{_about_sft(stage)}.",
        "",
        *(_about_adapter(config, start_directory(stage)) if adapter else ()),
        "Data: "
        + ", ".join(
            f"{dataset['counts'][name]} rows of {name} (sha256 {digest[:12]})"
            for name, digest in ((file.partition(".")[0], d) for file, d in dataset["sha256"].items())
        )
        + ".",
        "",
        f"Held-out evaluation: {evaluation['prompts']} prompts, {evaluation['samples']} samples each.",
        "",
        "| reward | before | after |",
        "|---|---|---|",
        *(
            f"| {name} | {number(sampled['sft']['functions'][name])} | "
            f"{number(sampled['grpo']['functions'][name])} |"
            for name in config.rewards.functions
        ),
        f"| weighted | {sampled['sft']['reward']:.4f} | {sampled['grpo']['reward']:.4f} |",
        "",
        f"Paired difference {difference['mean']:+.4f}, {difference['confidence']:.0%} bootstrap interval "
        f"by prompt [{difference['low']:+.4f}, {difference['high']:+.4f}].",
        "",
        *_about_benchmarks(evaluation),
        "Versions: " + ", ".join(f"{name} {version}" for name, version in train["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def _about_adapter(config: Config, start: Path) -> list[str]:
    return [
        f"A LoRA adapter (rank {config.trainer.lora_rank}, alpha {config.trainer.lora_alpha}). PEFT loads it "
        f"onto `{start.absolute()}`, which is not in this directory.",
        "",
    ]


def _about_sft(stage: Stage) -> str:
    if stage.config.sft is None:
        return ""
    seen = manifest_of(stage.input["start"])["conversations"]
    return f", after supervised fine-tuning on {seen['rows']} conversations (sha256 {seen['sha256'][:12]})"


def _about_benchmarks(evaluation: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {found['dataset']} {found['metric']} | {found['rows']} | {number(found['sft'])} | "
        f"{number(found['grpo'])} |"
        for found in evaluation.get("benchmarks", ())
        if found["main"]
    ]
    head = ["| benchmark (EvalScope) | rows | before | after |", "|---|---|---|---|"]
    return [*head, *rows, ""] if rows else []
