"""Stage cache_dataset: frozen, validated prompts for GRPO and the tokenised conversations of SFT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpoflow.commands.base import flags
from grpoflow.commands.cache import cache_grpo_dataset, cache_sft_dataset
from grpoflow.commands.common import model_arguments
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.rewards import reward_request
from grpoflow.config import Config
from grpoflow.files import read_json, sha256, write_json
from grpoflow.launch.process import ProgramFailed

from .base import Stage, StageFailed, attempt_directory, finish, manifest_of
from .inside import inside
from .rewards import START_SECONDS, try_rewards

PIXEL_VARIABLES = ("IMAGE_", "VIDEO_", "FPS", "MAX_PIXELS", "MIN_PIXELS", "SPATIAL_MERGE_SIZE", "QWENVL_")


def cache_dataset(stage: Stage) -> None:
    """Freeze train and val, try the reward functions on them, tokenise the SFT data, warm ms-swift's cache.

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
        cached = _export(stage, work)
        if cached:
            facts["cached_rows"] = cached
        if _evaluates_in_training(config):
            facts["in_training_evaluation"] = _trim(config, work)
        facts["sha256"] = {f"{name}.jsonl": sha256(work / f"{name}.jsonl") for name in splits}
        finish(stage, work, **facts)
    _warm(stage, found)
    counts = facts["counts"]
    stage.say(f"{counts['train']} training prompts, {counts['val']} held out, {counts['rejected']} rejected")


def _freeze(stage: Stage, work: Path) -> dict[str, Any]:
    config, data = stage.config, stage.config.data
    request, result = work / "freeze.json", work / "frozen.json"
    sources = {"val": data.val, "train": data.train} | ({"sft": config.sft.dataset} if config.sft else {})
    write_json(
        request,
        {
            **reward_request(config),
            "template": flags(model_arguments(config, config.model.path)),
            "sources": {name: str(Path(source).absolute()) for name, source in sources.items()},
            "directory": str(work),
            "final": str(stage.output.parent.absolute()),
            "max_length": data.max_length if data.truncation_strategy == "delete" else None,
            "num_proc": data.num_proc,
            "plugin_seconds": START_SECONDS,
            "result": str(result),
        },
    )
    stage.run("cache_prompts", inside(stage, "cache_prompts", request))
    found: dict[str, Any] = read_json(result)
    for path in (request, result):
        path.unlink()
    return found


def _check_counts(config: Config, splits: Mapping[str, Any]) -> None:
    """Raises: StageFailed: too few rows, rejected ones that are not allowed, or too many images in a row."""
    data = config.data
    rejected = {name: split["rejected"] for name, split in splits.items() if split["rejected"]}
    if data.on_invalid == "refuse" and rejected:
        raise StageFailed(f"data.on_invalid is refuse, and rows are invalid: {rejected}")
    for name, split in splits.items():
        if not split["kept"]:
            raise StageFailed(f"no valid row is left of {name}: {split['rejected'] or 'it has none'}")
    most = max(splits[name]["most_images"] for name in ("train", "val"))
    if config.rollout.mode == "server" and most > config.rollout.limit_images:
        raise StageFailed(
            f"a row has {most} images, and rollout.limit_images is {config.rollout.limit_images}: vLLM would"
            f" refuse it in the middle of training (vllm#13513). Set rollout.limit_images: {most}"
        )


def _export(stage: Stage, work: Path) -> dict[str, int]:
    """Make the cached data sets; return their rows.

    Raises:
        StageFailed: `swift export` ended with code 0 and wrote nothing, or dropped prompts.
    """
    config = stage.config
    cached: dict[str, Path] = {}
    if config.sft is not None:
        stage.run("export-sft", cache_sft_dataset(config, work / "sft.jsonl", work / "sft"))
        cached["sft"] = work / "sft" / "train"
    if config.data.grpo_cached:
        stage.run("export-grpo", cache_grpo_dataset(config, work / "train.jsonl", work / "grpo"))
        cached["grpo"] = work / "grpo" / "train"
    if not cached:
        return {}
    for path in cached.values():
        if not (path / "dataset_info.json").is_file():
            raise StageFailed(f"swift export wrote no data set under {path}")
    result = work / "rows.json"
    stage.run("count_rows", inside(stage, "count_rows", result, *cached.values()))
    rows = {name: int(read_json(result)[str(path)]) for name, path in cached.items()}
    result.unlink()
    if "sft" in rows and not rows["sft"]:
        raise StageFailed("sft.max_length is shorter than every conversation")
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
