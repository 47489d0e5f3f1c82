"""Every argument that we pass exists in the catalogue of the configured ms-swift release."""

from pathlib import Path

import pytest
from grpoflow.commands.base import Command, flags
from grpoflow.commands.cache import cache_sft_dataset
from grpoflow.commands.convert import merge_adapter, to_hf, to_mcore
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.infer import infer
from grpoflow.commands.rollout import rollout
from grpoflow.commands.sft import sft
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config, load_experiments, read_yaml
from grpoflow.config.load import merge
from grpoflow.config.tuner import Parallel
from grpoflow.facts.arguments import load_catalogue

ROOT = Path(__file__).parents[2]
DEFAULT = read_yaml(ROOT / "config/config.yaml")


def config_with(**overlay: object) -> Config:
    return load_experiments(merge(DEFAULT, overlay))["main"]


VARIANTS = {
    "default": {},
    "gpu": {"cluster": {"device": "cuda"}},
    "swift": {"trainer": {"backend": "swift"}},
    "swift lora zero3": {"trainer": {"backend": "swift", "tuner": "lora", "deepspeed": "zero3"}},
    "megatron lora": {"trainer": {"tuner": "lora"}},
    "megatron sft": {"sft": {"backend": "megatron"}},
    "colocate": {"rollout": {"mode": "colocate"}},
    "vllm evaluation": {"evaluate": {"engine": "vllm"}},
    "full recompute": {"trainer": {"recompute": "full"}},
}


def commands(config: Config) -> dict[str, Command]:
    here = Path("x")
    paths = TrainPaths(here, here, here, here, resume_from=here)
    servers = [Server("127.0.0.1", 8000, 51216)]
    return {
        "cache": cache_sft_dataset(config, here, here),
        "sft": sft(config, here, here, Ranks(), Parallel()),
        "to_mcore": to_mcore(config, here, here, Ranks()),
        "to_hf": to_hf(config, here, here, here, Ranks()),
        "merge": merge_adapter(config, here, here, here),
        "rollout": rollout(config, here, 8000, 1),
        "train": train(config, paths, Ranks(), Parallel(), servers),
        "infer": infer(config, here, here, here, greedy=True),
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_argument_is_known(variant: str) -> None:
    config = config_with(**VARIANTS[variant])
    catalogue = load_catalogue(config.cluster.ms_swift)
    problems = {}
    for name, command in commands(config).items():
        program, subcommand = Path(command.argv[0]).name, command.argv[1]
        found = catalogue.check_argv(f"{program} {subcommand}", command.argv[2:])
        if found:
            problems[name] = [problem.message for problem in found]
    assert problems == {}


def test_enable_thinking_is_the_same_in_every_command() -> None:
    told = {
        name: command.argv[command.argv.index("--enable_thinking") + 1]
        for name, command in commands(config_with(model={"enable_thinking": True})).items()
    }
    assert set(told.values()) == {"true"}
    assert len(told) == len(commands(config_with()))


def test_flags_write_what_hf_argument_parser_reads() -> None:
    assert flags({"a": True, "b": [1, 2], "c": None, "d": {"x": 1}, "e": Path("p")}) == (
        *("--a", "true"),
        *("--b", "1", "2"),
        *("--d", '{"x": 1}'),
        *("--e", "p"),
    )


@pytest.mark.parametrize(("sharing", "steps"), [(1, 2), ("2", 4), (8, 16)])
def test_gpus_that_share_their_sequences_accumulate_more_in_sft(sharing: int | str, steps: int) -> None:
    """global_batch_size counts sequences: 64 of 4 for each of 8 GPUs, or for each group of them."""
    overlay = {
        "sft": {
            **{"backend": "swift", "micro_batch_size": 4, "global_batch_size": 64},
            "args": {"sequence_parallel_size": sharing},
        }
    }
    argv = sft(config_with(**overlay), Path("x"), Path("x"), Ranks(nproc_per_node=8), Parallel()).argv
    assert argv[argv.index("--gradient_accumulation_steps") + 1] == str(steps)
