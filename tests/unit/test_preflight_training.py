"""Settings under which training goes wrong without an error: when each check speaks, and when it does not."""

import json
from pathlib import Path
from typing import Any

import pytest
from configurations import changed_model, config, environment
from grpoflow.commands.distributed import Ranks
from grpoflow.commands.train import TrainPaths, train
from grpoflow.config import load_experiments
from grpoflow.config.tuner import Parallel
from grpoflow.preflight import check_raw
from grpoflow.preflight.report import Problem

SFT: dict[str, Any] = {
    "backend": "swift",
    "dataset": "data/sft.jsonl",
    "learning_rate": 1.0e-5,
    "epochs": 1,
    "global_batch_size": 16,
}
PATHS = TrainPaths(Path("start"), Path("mcore"), Path("train.jsonl"), Path("output"))
Tie = bool | None


def found(rule: str, *overlays: dict[str, Any]) -> list[Problem]:
    configs, report = check_raw(config(*overlays))
    assert configs, report
    return [problem for problem in report.problems if problem.id == rule]


def argument(name: str, *overlays: dict[str, Any]) -> str | None:
    """The value of an argument of the trainer."""
    settings = load_experiments(config(*overlays))["main"]
    assert isinstance(settings.trainer.parallel, Parallel)
    argv = train(settings, PATHS, Ranks(), settings.trainer.parallel, []).argv
    return argv[argv.index(f"--{name}") + 1] if f"--{name}" in argv else None


# --- text-only checkpoints ---


def text_only(here: Path) -> str:
    def change(content: dict[str, Any]) -> dict[str, Any]:
        return {**content["text_config"], "model_type": "qwen3_5_text", "tie_word_embeddings": False}

    return changed_model(here, "9B", change)


def test_each_megatron_section_is_named(tmp_path: Path) -> None:
    overlay = {"model": {"path": text_only(tmp_path)}, "sft": {**SFT, "backend": "megatron"}}
    problems = found("megatron_knows_the_model", overlay)
    assert [problem.key for problem in problems] == ["trainer.backend", "sft.backend"]
    assert all(problem.legal == ("swift",) for problem in problems)


def test_the_swift_backend_trains_text_only_checkpoints(tmp_path: Path) -> None:
    overlay = {"model": {"path": text_only(tmp_path)}, "trainer": {"backend": "swift", "parallel": "auto"}}
    assert found("megatron_knows_the_model", overlay) == []


# --- tied embeddings ---


def tied(here: Path, outer: Tie, inner: Tie) -> str:
    def change(content: dict[str, Any]) -> dict[str, Any]:
        for section, value in ((content, outer), (content["text_config"], inner)):
            section.pop("tie_word_embeddings", None)
            if value is not None:
                section["tie_word_embeddings"] = value
        return content

    return changed_model(here, "9B", change)


@pytest.mark.parametrize(
    ("outer", "inner", "sft", "refused"),
    [
        (True, True, True, False),
        (False, False, True, False),
        (True, False, False, True),
        (False, True, False, True),
        (False, None, True, False),
        (True, None, False, False),
        # the sft stage saves the inner key that is missing, with transformers' default
        (True, None, True, True),
    ],
)
def test_tie_word_embeddings(tmp_path: Path, outer: Tie, inner: Tie, sft: bool, refused: bool) -> None:
    overlay: dict[str, Any] = {"model": {"path": tied(tmp_path, outer, inner)}}
    problems = found("embeddings_are_tied_alike", overlay, {"sft": SFT} if sft else {})
    assert bool(problems) == refused
    assert all("both places" in str(problem.legal) for problem in problems)


@pytest.mark.parametrize(("head", "says"), [(True, "fits false"), (False, "fits true")])
def test_the_weights_say_which_value_is_right(tmp_path: Path, head: bool, says: str) -> None:
    path = tied(tmp_path, True, False)
    header = json.dumps(
        {"model.embed_tokens.weight": {}, **({"lm_head.weight": {}} if head else {})}
    ).encode()
    (Path(path) / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (problem,) = found("embeddings_are_tied_alike", {"model": {"path": path}})
    assert says in problem.why


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 8, (9).to_bytes(8, "little") + b"not JSON!"])
def test_torn_weights_say_nothing(tmp_path: Path, content: bytes) -> None:
    path = tied(tmp_path, True, False)
    (Path(path) / "model.safetensors").write_bytes(content)
    (problem,) = found("embeddings_are_tied_alike", {"model": {"path": path}})
    assert "Keep the value" in problem.why


# --- float32 ---


@pytest.mark.parametrize(
    ("overlay", "refused"),
    [
        ({}, True),
        ({"model": {"torch_dtype": "bfloat16"}}, False),
        ({"trainer": {"save_optimizer": False}}, False),
        ({"trainer": {"backend": "swift", "parallel": "auto"}}, False),
        ({"trainer": {"args": {"dist_ckpt_optim_fully_reshardable": True}}}, False),
        ({"trainer": {"args": {"use_distributed_optimizer": False}}}, False),
        # on a CPU the commands switch it off
        ({"cluster": {"device": "cpu"}}, False),
        ({"cluster": {"device": "cpu"}, "trainer": {"args": {"use_distributed_optimizer": True}}}, True),
    ],
)
def test_float32_optimizer(overlay: dict[str, Any], refused: bool) -> None:
    problems = found("float32_optimizer_can_be_loaded", {"model": {"torch_dtype": "float32"}}, overlay)
    assert [problem.level for problem in problems] == ["refuse"] * refused


# --- vocabulary split over tensor-parallel ranks ---


@pytest.mark.parametrize(
    ("core", "tensor", "initialises"),
    [("0.16.1", 2, "true"), ("0.17.1", 2, "true"), ("0.16.1", 1, None), ("0.18.0", 2, None)],
)
def test_old_megatron_core_initialises_what_it_splits(
    tmp_path: Path, core: str, tensor: int, initialises: str | None
) -> None:
    cluster = {"environment": environment(tmp_path, megatron_core=core)}
    overlay = {"cluster": cluster, "trainer": {"parallel": {"tensor": tensor}}}
    assert argument("perform_initialization", overlay) == initialises
    refuses = {"trainer": {"args": {"perform_initialization": False}}}
    assert bool(found("vocabulary_counts_in_grad_norm", overlay, refuses)) == (initialises is not None)
    assert found("vocabulary_counts_in_grad_norm", overlay) == []


# --- colocated engine ---


@pytest.mark.parametrize(("asked", "given"), [(4, "4"), (8, "8"), (256, "8")])
def test_colocated_engine_gets_its_number_of_sequences(asked: int, given: str) -> None:
    """64 completions of 8 ranks are 8 for an engine on one of them."""
    rollout = {"mode": "colocate", "gpu_memory_utilization": 0.5, "max_num_seqs": asked}
    assert argument("vllm_max_num_seqs", {"rollout": rollout}) == given


def test_the_number_of_sequences_is_no_argument() -> None:
    overlay = {"rollout": {"mode": "colocate"}, "trainer": {"args": {"vllm_max_num_seqs": 8}}}
    (problem,) = found("argument_is_not_modelled", overlay)
    assert problem.legal == ("rollout.max_num_seqs",)
