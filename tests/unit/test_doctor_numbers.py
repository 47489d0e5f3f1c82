"""What the doctor makes of logging.jsonl, args.json, profiles, autotuning messages and package lists."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grpoflow.doctor import diagnose
from grpoflow.doctor.findings import Diagnosis
from grpoflow.doctor.numbers import read

LOGS = Path(__file__).parents[1] / "data" / "logs"


def span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m {rest}s" if hours else f"{minutes}m {rest}s" if minutes else f"{rest}s"


def record(step: int, elapsed: float, megatron: bool = True, **values: float) -> dict[str, Any]:
    good = {
        "loss": 1e-5,
        "grad_norm": 0.1,
        "reward": 0.4,
        "reward_std": 0.3,
        "frac_reward_zero_std": 0.2,
        "completions/mean_length": 100.0,
        "completions/max_length": 200.0,
    }
    names = {"clipped_ratio": "completions/clipped_ratio", "mean_length": "completions/mean_length"}
    changed = {names.get(name, name): value for name, value in values.items()}
    position = "iteration" if megatron else "global_step/max_steps"
    memory = {"memory(GiB)": 71.2}
    return {**good, **changed, position: f"{step}/100", "elapsed_time": span(elapsed), **memory}


def run(path: Path, records: list[dict[str, Any]], args: Mapping[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "logging.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if args is not None:
        (path / "args.json").write_text(json.dumps(args))
    return path


def steps(count: int, seconds: float = 10.0, **values: float) -> list[dict[str, Any]]:
    return [record(step, 30 + seconds * step, **values) for step in range(1, count + 1)]


def ids(diagnosis: Diagnosis, kind: str = "") -> list[str]:
    return [finding.id for finding in diagnosis.findings if kind in ("", finding.kind)]


def test_a_good_run(tmp_path: Path) -> None:
    assert diagnose([run(tmp_path, steps(20), {"max_completion_length": 1000})]).findings == ()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"grad_norm": 0.0}, "N02-no-gradient"),
        ({"grad_norm": 0.0, "frac_reward_zero_std": 1.0}, "N02-no-reward-signal"),
        ({"mean_length": 0.0}, "N03-empty-completions"),
        ({"loss": float("nan")}, "N01-not-finite"),
        ({"grad_norm": float("inf")}, "N01-not-finite"),
    ],
)
def test_failures_without_an_error_text(values: dict[str, float], found: str, tmp_path: Path) -> None:
    diagnosis = diagnose([run(tmp_path, steps(6, **values))])
    assert ids(diagnosis, "cause") == [found]
    assert diagnosis.first_cause is not None and diagnosis.first_cause.line == 1


def test_a_single_step_without_gradient_is_no_failure(tmp_path: Path) -> None:
    """With overlong_filter or equal rewards it happens."""
    assert ids(diagnose([run(tmp_path, [*steps(5), record(6, 90, grad_norm=0.0)])])) == []


def test_a_crash_comes_before_a_silent_failure(tmp_path: Path) -> None:
    run(tmp_path, steps(6, grad_norm=0.0))
    (tmp_path / "trainer-0.log").write_text("Traceback (most recent call last):\n  File\nKeyError: 'x'\n")
    assert ids(diagnose([tmp_path]), "cause") == ["exception", "N02-no-gradient"]


@pytest.mark.parametrize(
    ("rewards", "falls"),
    [
        ([0.9, 0.1, 0.1, 0.05, 0.1, 0.08], True),
        ([0.37, 0.07, 0.06, 0.08, 0.07], True),
        ([0.4, 0.33, 0.38, 0.36, 0.4], False),
        ([0.12, 0.066, 0.075, 0.07, 0.066], False),  # within the noise of one rollout
        ([0.9, 0.1, 0.1, 0.8, 0.1, 0.9], False),  # noisy, but it comes back
        ([0.9, 0.1, 0.1], False),  # too few to tell
    ],
)
def test_a_reward_that_falls_at_the_first_sync(rewards: list[float], falls: bool, tmp_path: Path) -> None:
    records = [record(step, 10.0 * step, reward=reward) for step, reward in enumerate(rewards, 1)]
    found = ids(diagnose([run(tmp_path, records, {"generation_batch_size": 64})]))
    assert found == (["N04-reward-falls-at-first-sync"] if falls else [])


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ((0.3, 0.6, 0.3), ["N07-reward-rises-and-falls"]),
        ((0.3, 0.6, 0.5), []),  # above three quarters of the best
        ((0.3, 0.5, 0.8), []),
    ],
)
def test_a_reward_that_rises_and_falls(ends: tuple[float, ...], found: list[str], tmp_path: Path) -> None:
    rewards = [reward + 0.02 * (step % 3 - 1) for reward in ends for step in range(12)]
    records = [record(step, 10.0 * step, reward=reward) for step, reward in enumerate(rewards, 1)]
    assert ids(diagnose([run(tmp_path, records)])) == found


@pytest.mark.parametrize(("end", "found"), [(0.4, ["N08-reward-part-falls"]), (0.6, []), (1.0, [])])
def test_a_reward_function_that_is_given_up(end: float, found: list[str], tmp_path: Path) -> None:
    values = [1.0] * 15 + [end] * 15
    records = [
        {**record(step, 10.0 * step), "rewards/Format/mean": value} for step, value in enumerate(values, 1)
    ]
    assert ids(diagnose([run(tmp_path, records)])) == found


def test_sft_that_learns_nothing(tmp_path: Path) -> None:
    zero = {"loss": 0.0, "grad_norm": 1.0, "token_acc": 0.0, "elapsed_time": "9s"}
    sft = [{**zero, "global_step/max_steps": f"{step}/9"} for step in range(1, 5)]
    assert ids(diagnose([run(tmp_path / "zero", sft)])) == ["N05-sft-loss-zero"]
    sft = [{**row, "loss": 12.9} for row in sft]
    assert ids(diagnose([run(tmp_path / "random", sft)])) == ["N06-weights-not-loaded"]


def test_groups_without_signal(tmp_path: Path) -> None:
    assert ids(diagnose([run(tmp_path, steps(6, frac_reward_zero_std=0.95))])) == [
        "S01-groups-without-signal"
    ]


@pytest.mark.parametrize(
    ("values", "cap", "found"),
    [
        ({"mean_length": 190.0}, 200, ["S07-length-at-the-cap"]),
        ({"clipped_ratio": 0.6}, 200, ["S07-length-at-the-cap"]),
        ({"clipped_ratio": 0.2}, 1000, ["S06-clipped-by-the-window"]),
        ({"clipped_ratio": 0.2}, 200, []),
        ({"clipped_ratio": 0.0}, 1000, []),
    ],
)
def test_completion_length(values: dict[str, float], cap: int, found: list[str], tmp_path: Path) -> None:
    assert ids(diagnose([run(tmp_path, steps(6, **values), {"max_completion_length": cap})])) == found


def test_time_of_saving_and_evaluation(tmp_path: Path) -> None:
    """Steps take 10 s; a save after every fifth step takes 40 s, an evaluation after every tenth 60 s."""
    records: list[dict[str, Any]] = []
    clock = 30.0
    for step in range(1, 41):
        clock += 10
        records.append(record(step, clock))
        if step % 10 == 0:
            records.append({"eval_reward": 0.5, "iteration": f"{step}/100"})
            clock += 60
        if step % 5 == 0:
            clock += 40
    path = run(tmp_path, records, {"save_steps": 5})
    training = read(path / "logging.jsonl", save_steps=5)
    assert training.plain.per_step == pytest.approx(10)
    assert training.saving.count == 4 and training.saving.per_step == pytest.approx(50)
    assert training.evaluating.count == 3 and training.evaluating.per_step == pytest.approx(110)
    diagnosis = diagnose([path])
    assert ids(diagnosis) == ["S03-saving", "S03-evaluation"]
    assert "saving takes 40 s each" in diagnosis.findings[0].text


def test_a_resumed_run_appends_and_starts_its_clock_again(tmp_path: Path) -> None:
    records = [*steps(10), *(record(step, 25 + 10 * (step - 7)) for step in range(8, 14))]
    training = read(run(tmp_path, records) / "logging.jsonl", save_steps=0)
    assert training.plain.per_step == pytest.approx(10)
    assert training.plain.count == 9 + 5
    assert training.first_step_seconds == 40 + 35


def test_a_run_resumed_after_its_last_line(tmp_path: Path) -> None:
    records = [*steps(10), *(record(step, 25 + 10 * (step - 10)) for step in range(11, 14))]
    training = read(run(tmp_path, records) / "logging.jsonl", save_steps=0)
    assert (training.plain.count, training.plain.per_step) == (9 + 2, pytest.approx(10))


def test_lines_that_are_cut_or_foreign_are_skipped(tmp_path: Path) -> None:
    path = run(tmp_path, steps(4))
    with (path / "logging.jsonl").open("a") as log:
        log.write('[1]\n"x"\n' + json.dumps({"log_history": ["x" * (3 << 20)]}) + "\n")
        log.write(json.dumps(record(5, 80)) + "\n" + '{"loss": 1e-5, "gra')
    assert read(path / "logging.jsonl", 0).records == 5


@pytest.mark.parametrize(
    ("seconds", "args", "near"),
    [
        (500, None, True),
        (500, {"ddp_timeout": 18000000}, False),
        (500, {"ddp_timeout": 550}, True),
        (300, None, False),
    ],
)
def test_steps_near_the_watchdog(seconds: float, args: dict[str, int], near: bool, tmp_path: Path) -> None:
    found = ids(diagnose([run(tmp_path, steps(4, seconds=seconds), args)]))
    assert found == (["S04-near-the-watchdog"] if near else [])


@pytest.mark.parametrize(
    ("args", "slow"),
    [
        ({"model": "Qwen/Qwen3.5-35B-A3B", "deepspeed": "zero3"}, True),
        ({"model_type": "qwen3_5_moe", "deepspeed": {"zero_optimization": {"stage": 3}}}, True),
        ({"model": "Qwen/Qwen3.5-35B-A3B", "deepspeed": {"zero_optimization": {"stage": 2}}}, False),
        ({"model": "Qwen/Qwen3.5-9B", "deepspeed": "zero3"}, False),
        ({"model": "Qwen/Qwen3.5-35B-A3B", "deepspeed": None}, False),
    ],
)
def test_zero3_with_experts(args: dict[str, Any], slow: bool, tmp_path: Path) -> None:
    assert ids(diagnose([run(tmp_path, steps(4), args)])) == (["S05-zero3-with-experts"] if slow else [])


# ---------------------------------------------------------------- the split of a step


def profile(trainer: str, **seconds: float) -> dict[str, float]:
    return {f"profiling/Time taken: {trainer}.{name}": value for name, value in seconds.items()}


def test_the_split_of_a_megatron_run_from_its_profile(tmp_path: Path) -> None:
    """Ten steps of 10 s; _generate_completions contains _move_model_to_vllm."""
    path = run(tmp_path, [record(step, 10.0 * step) for step in range(1, 12)])
    rows = [
        profile("MegatronGRPOTrainer", _generate_completions=6.0, _move_model_to_vllm=2.5),
        profile("MegatronGRPOTrainer", compute_ref_old_logps=1.0),
        profile("MegatronGRPOTrainer", _score_completions=0.5),
    ]
    (path / "profiling.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 10))
    diagnosis = diagnose([path])
    (note,) = [note for note in diagnosis.notes if "a step" in note]
    expected = (
        "10.0 s a step: rollout 3.5 s (35%), sync 2.5 s (25%), update and rest 2.5 s (25%), log-probs 1.0 s"
    )
    assert expected in note
    assert ids(diagnosis) == ["S02-sync-dominates"]


def test_the_split_of_a_swift_run_from_wandb_s_summary(tmp_path: Path) -> None:
    """Two optimizer steps per rollout, so half of its time belongs to one."""
    args = {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "max_completion_length": 1000}
    path = run(tmp_path, [record(step, 10.0 * step, megatron=False) for step in range(1, 12)], args)
    summary = profile("GRPOTrainer", generate=17.0, _move_model_to_vllm=1.0, _prepare_batch_inputs=1.0)
    (path / "wandb/run-1/files").mkdir(parents=True)
    (path / "wandb/run-1/files/wandb-summary.json").write_text(json.dumps({**summary, "_step": 11}))
    diagnosis = diagnose([path])
    assert ids(diagnosis) == ["S02-rollout-dominates"]
    assert "rollout 8.5 s (85%)" in diagnosis.findings[0].text


def test_the_time_of_generation_from_the_bars_of_the_rollout_log(tmp_path: Path) -> None:
    """Two data-parallel engines print a bar each for one request: 11 requests, 22 bars of 9 s."""
    path = run(tmp_path, [record(step, 10.0 * step) for step in range(1, 12)])
    bar = "\r  0%|          | 0/64 [00:00<?, ?it/s]\r100%|####| 64/64 [00:09<00:00,  7.11it/s]\n"
    call = 'INFO:     10.0.0.2:56606 - "POST /infer/ HTTP/1.1" 200 OK\n'
    load = "Loading: 100%|####| 9/9 [05:00<00:00,  1.0it/s]\n"
    (path / "rollout-0.log").write_text(load + (bar + bar + call) * 11)
    diagnosis = diagnose([path])
    assert ids(diagnosis) == ["S02-rollout-dominates"]
    assert "rollout 9.0 s (90%)" in diagnosis.findings[0].text


def test_short_steps_are_not_judged(tmp_path: Path) -> None:
    path = run(tmp_path, [record(step, 3.0 * step) for step in range(1, 12)])
    bar = "\r100%|####| 64/64 [00:03<00:00,  7.11it/s]\n" + 'INFO: - "POST /infer/ HTTP/1.1" 200 OK\n'
    (path / "rollout-0.log").write_text(bar * 11)
    diagnosis = diagnose([path])
    assert ids(diagnosis) == []
    assert any("3.0 s a step: rollout" in note for note in diagnosis.notes)


# ---------------------------------------------------------------- Triton and packages


def tuned(kernel: str, key: int, seconds: float) -> list[str]:
    return [
        f"Triton autotuning for function {kernel},",
        f"with key as ({key}, 128, 'torch.bfloat16'),",
        f"finished after {seconds:.2f}s,",
        "best config selected: BT: 8, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None;",
    ]


def test_kernels_that_are_tuned_again_are_counted(tmp_path: Path) -> None:
    """Two ranks tune the same keys at the same time, and their lines are mixed: the time is lost once."""
    lines: list[str] = []
    for bucket in range(8):
        first, second = (tuned("l2norm_fwd_kernel", bucket, seconds) for seconds in (10.7, 9.0))
        lines += [line for both in zip(first, second, strict=True) for line in both]
        lines += tuned("l2norm_bwd_kernel", bucket, 13.2)
    lines += tuned("chunk_fwd_kernel_o", 0, 20.0)
    (tmp_path / "trainer-0.log").write_text("\n".join(lines) + "\n")
    (finding,) = diagnose([tmp_path]).findings
    assert finding.id == "S08-triton-tunes-again"
    assert "l2norm_bwd_kernel 8 times 106 s, l2norm_fwd_kernel 8 times 86 s" in finding.text
    assert "191 s lost" in finding.text
    assert "chunk_fwd" not in finding.text
    assert "0.4.0 and 0.4.1" in finding.why


def test_tuning_once_is_no_finding(tmp_path: Path) -> None:
    lines = [line for number in range(12) for line in tuned(f"kernel_{number}", 0, 13.0)]
    (tmp_path / "trainer-0.log").write_text("\n".join(lines) + "\n")
    diagnosis = diagnose([tmp_path])
    assert diagnosis.findings == ()
    assert "12 kernels for 156 s" in diagnosis.notes[0]


def test_messages_of_older_triton_have_no_key(tmp_path: Path) -> None:
    line = "Triton autotuning for function l2norm_fwd_kernel finished after 10.00s; best config: 8;\n"
    (tmp_path / "trainer-0.log").write_text(line * 6)
    assert "l2norm_fwd_kernel 6 times 60 s" in diagnose([tmp_path]).findings[0].text


@pytest.mark.parametrize(
    ("line", "old"),
    [
        ("fla-core==0.4.1", True),
        ("flash-linear-attention==0.4.0", True),
        ("flash-linear-attention==0.4.2", False),
        ("fla-core @ file:///x/fla.whl", False),
    ],
)
def test_versions_of_fla(line: str, old: bool, tmp_path: Path) -> None:
    (tmp_path / "pip-freeze.txt").write_text(f"torch==2.11.0\n{line}\nvllm==0.23.0\n")
    findings = diagnose([tmp_path]).findings
    assert [(finding.id, finding.line) for finding in findings] == ([("S09-old-fla", 2)] if old else [])


def test_a_broken_args_file_is_ignored(tmp_path: Path) -> None:
    path = run(tmp_path, steps(4))
    (path / "args.json").write_text("{")
    os.utime(path / "args.json")
    assert diagnose([path]).findings == ()
