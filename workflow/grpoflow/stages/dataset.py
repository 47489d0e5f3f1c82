"""Stages cache_dataset, the frozen, validated prompts of GRPO, and cache_sft, the tokenised conversations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpoflow.commands.base import Command, flags
from grpoflow.commands.cache import cache_grpo_dataset, cache_sft_dataset
from grpoflow.commands.common import model_arguments
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rewards import reward_request
from grpoflow.config import Config
from grpoflow.files import read_json, sha256, write_json
from grpoflow.launch.process import ProgramFailed

from .attempt import attempt_directory
from .base import Stage, StageFailed, finish, manifest_of
from .inside import inside
from .rewards import START_SECONDS, try_rewards

CONVERSATIONS = Path("sft/train")
"""The tokenised conversations in the result of cache_sft."""

PIXEL_VARIABLES = ("IMAGE_", "VIDEO_", "FPS", "MAX_PIXELS", "MIN_PIXELS", "SPATIAL_MERGE_SIZE", "QWENVL_")


def cache_dataset(stage: Stage) -> None:
    """Freeze train and val, try the reward functions on them, warm ms-swift's cache.

    Raises:
        StageFailed: nothing valid is left; rows are invalid and `data.on_invalid` is `refuse`; a reward
        function
            is faulty; or other values reach the trainer than the file holds.
        ProgramFailed: a file cannot be read, or ms-swift cannot load it.
    """
    config = stage.config
    with attempt_directory(stage) as work:
        found = _freeze(stage, work)
        splits = found["splits"]
        _check_counts(config, splits)
        calls = try_rewards(stage, work, work / "train.jsonl", found["template"]["response_prefix"] or "")
        facts: dict[str, Any] = {
            "counts": {
                **{name: split["kept"] for name, split in splits.items()},
                "rejected": sum(sum(split["rejected"].values()) for split in splits.values()),
            },
            "splits": splits,
            "template": found["template"],
            "rewards": {name: {**found["reward_columns"][name], **calls[name]} for name in calls},
            "pixels": pixel_environment(config),
        }
        if config.data.grpo_cached:
            made = cache_grpo_dataset(config, work / "train.jsonl", work / "grpo")
            facts["cached_rows"] = {"grpo": _export(stage, "grpo", made, work / "grpo/train")}
        if _evaluates_in_training(config):
            facts["in_training_evaluation"] = _trim(config, work)
        facts["sha256"] = {f"{name}.jsonl": sha256(work / f"{name}.jsonl") for name in splits}
        finish(stage, work, **facts)
    _warm(stage, found)
    counts = facts["counts"]
    stage.say(f"{counts['train']} training prompts, {counts['val']} held out, {counts['rejected']} rejected")


def cache_sft(stage: Stage) -> None:
    """Freeze the conversations of SFT without those that ask a held-out prompt, and tokenise them.

    Raises:
        StageFailed: nothing valid is left; rows are invalid and `data.on_invalid` is `refuse`.
        ProgramFailed: a file cannot be read, or ms-swift cannot load it.
    """
    config = stage.config
    with attempt_directory(stage) as work:
        sources = {"val": config.data.val, "sft": config.sft.dataset if config.sft else ""}
        splits = _request(stage, work, "cache_conversations", {"sources": _absolute(sources)})["splits"]
        _check_rows(config, splits)
        made = cache_sft_dataset(config, work / "sft.jsonl", work / "sft")
        rows = _export(stage, "sft", made, work / CONVERSATIONS)
        if not rows:
            raise StageFailed("sft.max_length is shorter than every conversation")
        kept, rejected = splits["sft"]["kept"], sum(splits["sft"]["rejected"].values())
        finish(
            stage,
            work,
            counts={"sft": kept, "rejected": rejected},
            splits=splits,
            pixels=pixel_environment(config),
            cached_rows={"sft": rows},
            sha256={"sft.jsonl": sha256(work / "sft.jsonl")},
        )
    stage.say(f"{rows} conversations, {kept - rows} dropped by ms-swift, {rejected} rejected")


def _freeze(stage: Stage, work: Path) -> dict[str, Any]:
    config, data = stage.config, stage.config.data
    request = {
        **reward_request(config),
        "template": flags(model_arguments(config, config.model.path)),
        "sources": _absolute({"val": data.val, "train": data.train}),
        "max_length": data.max_length if data.truncation_strategy == "delete" else None,
        "num_proc": data.num_proc,
        "plugin_seconds": START_SECONDS,
    }
    return _request(stage, work, "cache_prompts", request)


def _absolute(sources: Mapping[str, str]) -> dict[str, str]:
    return {name: str(Path(source).absolute()) for name, source in sources.items()}


def _request(stage: Stage, work: Path, module: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Let a program of the training environment freeze the sources into `work`; return what it found."""
    request, result = work / "freeze.json", work / "frozen.json"
    final = str(stage.output.parent.absolute())
    write_json(request, {**content, "directory": str(work), "final": final, "result": str(result)})
    stage.run(module, inside(stage, module, request))
    found: dict[str, Any] = read_json(result)
    for path in (request, result):
        path.unlink()
    return found


def _check_counts(config: Config, splits: Mapping[str, Any]) -> None:
    """Raises: StageFailed: too few rows, rejected ones that are not allowed, or too many images in a row."""
    _check_rows(config, splits)
    most = max(splits[name]["most_images"] for name in ("train", "val"))
    if config.rollout.mode == "server" and most > config.rollout.limit_images:
        raise StageFailed(
            f"a row has {most} images, and rollout.limit_images is {config.rollout.limit_images}: vLLM would"
            f" refuse it in the middle of training (vllm#13513). Set rollout.limit_images: {most}"
        )


def _check_rows(config: Config, splits: Mapping[str, Any]) -> None:
    """Raises: StageFailed: nothing is left of a file, or rows are rejected that must not be."""
    rejected = {name: split["rejected"] for name, split in splits.items() if split["rejected"]}
    if config.data.on_invalid == "refuse" and rejected:
        raise StageFailed(f"data.on_invalid is refuse, and rows are invalid: {rejected}")
    for name, split in splits.items():
        if not split["kept"]:
            raise StageFailed(f"no valid row is left of {name}: {split['rejected'] or 'it has none'}")


def _export(stage: Stage, name: str, command: Command, made: Path) -> int:
    """Make a cached data set; return its rows.

    Raises:
        StageFailed: `swift export` ended with code 0 and wrote nothing.
    """
    stage.run(f"export-{name}", command)
    if not (made / "dataset_info.json").is_file():
        raise StageFailed(f"swift export wrote no data set under {made}")
    result = made.parent / "rows.json"
    stage.run("count_rows", inside(stage, "count_rows", result, made))
    rows = int(read_json(result)[str(made)])
    result.unlink()
    return rows


def pixel_environment(config: Config) -> dict[str, str]:
    """What decides into how many tokens an image turns. Another value at training time ends in 'Image
    features and image tokens do not match' (ms-swift#8020)."""
    environment = clean_environment(config, os.environ)
    return {name: value for name, value in environment.items() if name.startswith(PIXEL_VARIABLES)}


def frozen_dataset(stage: Stage) -> dict[str, Any]:
    """The manifest of the data set that this stage reads.

    Raises:
        StageFailed: images would turn into other numbers of tokens than were measured.
    """
    manifest = manifest_of(stage.input["dataset"])
    measured, now = manifest.get("pixels", {}), pixel_environment(stage.config)
    if measured != now:
        raise StageFailed(
            f"the data set was measured with {measured or 'no pixel variables'}, and now there are {now}: "
            f"restore cluster.env, or remove {stage.input['dataset']} to measure again"
        )
    return manifest


def _evaluates_in_training(config: Config) -> bool:
    return bool({"val_dataset", "eval_steps", "eval_iters"} & config.trainer.args.keys())


def _trim(config: Config, work: Path) -> dict[str, int]:
    """Write the start of val that evaluation inside of training can use as eval.jsonl.

    One iteration of it takes global_batch_size / num_generations_eval prompts; a rest would shift the prompts
    of every further evaluation (swift/megatron/trainers/base.py:310-316, the iterator is cyclic).
    """
    trainer = config.trainer
    generations = int(trainer.args.get("num_generations_eval") or trainer.num_generations)
    per_iteration = max(1, trainer.global_batch_size // generations)
    with (work / "val.jsonl").open(encoding="utf-8") as content:
        lines = content.readlines()
    used = len(lines) // per_iteration * per_iteration
    (work / "eval.jsonl").write_text("".join(lines[:used]), encoding="utf-8")
    return {"prompts": used, "left_out": len(lines) - used, "iterations": used // per_iteration}


def _warm(stage: Stage, found: Mapping[str, Any]) -> None:
    """Load the prompts once as the trainer will, under their final name: the cache's key holds the path.

    Raises:
        ProgramFailed: rows or values are lost on the way. The manifest is removed: the result is not usable.
    """
    read = found["reward_columns"].values()
    request = stage.output.parent / "warm.json"
    content = {
        "dataset": str((stage.output.parent / "train.jsonl").absolute()),
        "rows": found["splits"]["train"]["kept"],
        "columns": sorted(
            {name for function in read for name in (*function["needed"], *function["optional"])}
        ),
        "num_proc": stage.config.data.num_proc,
        "seed": stage.config.trainer.seed,
    }
    try:
        write_json(request, content)
        stage.run("warm_cache", inside(stage, "warm_cache", request))
    except ProgramFailed:
        stage.output.unlink()
        raise
    finally:
        request.unlink(missing_ok=True)
