"""The commands that a configuration leads to, for the names of their arguments: numbers, paths and hosts are
placeholders. The plan has the real ones."""

from __future__ import annotations

from pathlib import Path

from grpoflow.commands.base import Command
from grpoflow.commands.benchmark import benchmark
from grpoflow.commands.cache import cache_sft_dataset
from grpoflow.commands.convert import merge_adapter, to_hf, to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.infer import infer
from grpoflow.commands.rollout import rollout
from grpoflow.commands.sft import sft
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config
from grpoflow.config.tuner import Parallel, TunerConfig


def generated_commands(config: Config) -> dict[str, Command]:
    """Every command of the workflow by the name of what it does."""
    here, ranks, parallel = Path("x"), Ranks(), Parallel()
    legal = config.model_copy(
        update={name: _with_a_legal_batch(getattr(config, name)) for name in ("trainer", "sft")}
    )
    paths = TrainPaths(here, here, here, here, resume_from=here)
    found = {
        "infer": infer(legal, here, here, here, greedy=True),
        "train": train(legal, paths, ranks, parallel, [Server("host", 1, 2)]),
    }
    if config.evaluate.benchmarks is not None:
        found["benchmark"] = benchmark(legal, config.evaluate.benchmarks, here, here, 1, copies=2)
    if config.rollout.mode == "server":
        found["rollout"] = rollout(legal, here, 1, 1)
    if config.sft is not None:
        found["cache"] = cache_sft_dataset(legal, here, here)
        found["sft"] = sft(legal, here, here, ranks, parallel)
    if config.trainer.backend == "megatron":
        found["to_mcore"] = to_mcore(legal, here, here, ranks)
        found["to_hf"] = to_hf(legal, here, here, here, ranks)
    elif config.trainer.tuner == "lora":
        found["merge"] = merge_adapter(legal, here, here, here)
    return found


def _with_a_legal_batch(tuner: TunerConfig | None) -> TunerConfig | None:
    """The same with a batch that one rank can make up: the builders refuse others, and the batch checks say
    so."""
    return tuner and tuner.model_copy(update={"global_batch_size": tuner.micro_batch_size})
