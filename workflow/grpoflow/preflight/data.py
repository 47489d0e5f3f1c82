"""The data files: columns, validity of rows, media, lengths, and enough of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .dataset import DataSet, prompt_lengths, read_dataset
from .estimate import batch_of
from .report import Level
from .rules import Finding, rule
from .subject import Subject

SHARE_DROPPED = 0.1


def _prompts(subject: Subject) -> list[tuple[str, DataSet]]:
    data = subject.config.data
    found = (("data.train", read_dataset(data.train)), ("data.val", read_dataset(data.val)))
    return [(key, dataset) for key, dataset in found if not dataset.unreadable]


@rule(evidence="config/README.md, section data")
def val_is_held_out(subject: Subject) -> Iterator[Finding]:
    """Protects from an evaluation on the prompts that were trained on."""
    data = subject.config.data
    if Path(data.val).absolute() == Path(data.train).absolute():
        why = "the same as data.train: evaluation would ask what was trained on"
        yield Finding("data.val", data.val, why, ("a file of other prompts",))


@rule(evidence="workflow/grpoflow/readers.py", needs="data")
def data_can_be_read(subject: Subject) -> Iterator[Finding]:
    """Protects from a path without data, or a format that nobody reads."""
    config = subject.config
    found = [("data.train", read_dataset(config.data.train)), ("data.val", read_dataset(config.data.val))]
    if config.sft is not None:
        found.append(("sft.dataset", read_dataset(config.sft.dataset, answered=True)))
    for key, dataset in found:
        if dataset.unreadable:
            level: Level = "warn" if dataset.here_only else "refuse"
            yield Finding(key, str(dataset.path), dataset.unreadable, ("JSON Lines",), level)


@rule(evidence="ms-swift#4351", needs="data")
def reward_plugin_exists(subject: Subject) -> Iterator[Finding]:
    """Protects from a reward plugin that is not there."""
    plugin = subject.config.rewards.plugin
    if plugin is not None and not Path(plugin).is_file():
        yield Finding("rewards.plugin", plugin, "no such file", ("a Python file",))


@rule(evidence="ms-swift#4058, ms-swift#2745", level="warn", needs="data")
def rows_are_valid(subject: Subject) -> Iterator[Finding]:
    """Protects from rows that are dropped, or end the training, because of their form."""
    found = [(key, dataset, subject.config.data.on_invalid == "refuse") for key, dataset in _prompts(subject)]
    sft = subject.config.sft
    conversations = read_dataset(sft.dataset, answered=True) if sft else None
    if conversations is not None and not conversations.unreadable:
        found.append(("sft.dataset", conversations, False))
    for key, dataset, strict in found:
        if dataset.rejected:
            reasons = ", ".join(
                f"{count} x {reason} (first: row {dataset.examples[reason]})"
                for reason, count in dataset.rejected.items()
            )
            total = len(dataset.rows) + sum(dataset.rejected.values())
            why = f"{sum(dataset.rejected.values())} of {total} rows are invalid: {reasons}"
            legal = ("data.on_invalid: drop",) if strict and dataset.rows else ()
            level: Level = "refuse" if strict or not dataset.rows else "warn"
            yield Finding(key, str(dataset.path), why, legal, level)


@rule(evidence="swift megatron/arguments/megatron_args.py:1149-1152", needs="data")
def there_are_enough_rows(subject: Subject) -> Iterator[Finding]:
    """Protects from a training of zero iterations, which ends at once and successfully."""
    batch, train = batch_of(subject), read_dataset(subject.config.data.train)
    if train.unreadable:
        return
    needed = 1 if batch is None else max(batch.micro_batch_size * batch.dp_size, batch.rollout_prompts)
    if len(train.rows) < needed:
        why = (
            f"{len(train.rows)} valid rows, and one rollout takes {needed}: training would end without a step"
        )
        yield Finding("data.train", str(train.path), why, (f"{needed} rows or more",))


@rule(evidence="ms-swift#2460, ms-swift 4.6.0 swift/template/base.py", needs="data")
def images_are_not_cut(subject: Subject) -> Iterator[Finding]:
    """Protects from 'Image features and image tokens do not match': prompts whose placeholders are cut."""
    data = subject.config.data
    if data.truncation_strategy == "left" and any(dataset.most_images for _, dataset in _prompts(subject)):
        why = "the data have images, and a prompt that is too long would lose its placeholders"
        yield Finding("data.truncation_strategy", "left", why, ("delete",))


@rule(evidence="ms-swift#2922, vllm#13513", needs="data")
def server_accepts_the_images(subject: Subject) -> Iterator[Finding]:
    """Protects from a server that refuses prompts with more images than it was told of."""
    rollout = subject.config.rollout
    most = max((dataset.most_images for _, dataset in _prompts(subject)), default=0)
    if rollout.mode == "server" and most > rollout.limit_images:
        why = f"a row has {most} images, and the server refuses a prompt with more than this"
        yield Finding("rollout.limit_images", rollout.limit_images, why, (most,))


@rule(evidence="ms-swift#6106, ms-swift#4754", level="warn", needs="data")
def prompts_are_short_enough(subject: Subject) -> Iterator[Finding]:
    """Protects from a data set that max_length silently shrinks."""
    config, train = subject.config, read_dataset(subject.config.data.train)
    if train.unreadable:
        return
    python = Path(config.cluster.environment) / "bin/python"
    tokenizer = Path(config.model.path) / "tokenizer.json"
    lengths = prompt_lengths(train.rows, python, tokenizer, config.data.image_max_tokens or 0)
    if not lengths:
        return
    limit = config.data.max_length
    longer = sum(length > limit for length in lengths) / len(lengths)
    if longer > SHARE_DROPPED:
        needed = sorted(lengths)[int(0.99 * (len(lengths) - 1))]
        why = (
            f"{longer:.0%} of the prompts are longer; 99 % have at most {needed} tokens (template estimated)"
        )
        yield Finding("data.max_length", limit, why, (needed,), "refuse" if longer == 1 else "warn")


@rule(evidence="ms-swift 4.6.0 megatron/pipelines/train/sft.py:98-121", needs="data")
def cache_has_the_reward_columns(subject: Subject) -> Iterator[Finding]:
    """Protects from a cached data set that was exported without the columns of the reward functions."""
    given = subject.config.trainer.args.get("cached_dataset")
    train = read_dataset(subject.config.data.train)
    if not given or train.unreadable or subject.config.trainer.backend != "megatron":
        return
    for path in given if isinstance(given, list) else [given]:
        try:
            features = json.loads((Path(str(path)) / "dataset_info.json").read_text(encoding="utf-8"))[
                "features"
            ]
        except (OSError, ValueError, KeyError):
            continue
        missing = sorted(train.columns - set(features) - {"id"})
        if missing:
            why = (
                f"the cache lacks the columns {', '.join(missing)}; export it with --template_mode train "
                "--remove_unused_columns false"
            )
            yield Finding("trainer.args.cached_dataset", path, why, ("leave it out",))
