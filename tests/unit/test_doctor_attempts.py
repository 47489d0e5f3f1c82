"""The doctor on logs that go on: what a training survived, and attempts that share a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from grpoflow.doctor import diagnose, main

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/data/rewards.py", line 7, in __call__\n    raise x\n'
)
OOM = f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.58 GiB.\n"
ODD = f"{TRACEBACK}KeyError: 'x'\n"
RUN = "run sh: `python -m torch.distributed.run /opt/venv/swift/cli/rlhf.py --rlhf_type grpo`\n"


def start(clock: str) -> str:
    return f"[INFO:swift] Start time of running main: 2026-11-30 {clock}.1\n"


def bars(begin: int, end: int) -> str:
    return "".join(
        f"\rTrain:  17%|x         | {step}/200 [00:26<01:51, 11.15s/it]" for step in range(begin, end)
    )


def metrics(begin: int, end: int) -> str:
    return "".join(
        f"{{'loss': '0.01', 'reward': '0.29', 'iteration': '{step}/200'}}\n" for step in range(begin, end)
    )


def kinds(text: str, directory: Path) -> list[tuple[str, str]]:
    log = directory / "train.log"
    log.write_text(text)
    return [(finding.id, finding.kind) for finding in diagnose([log]).findings]


@pytest.mark.parametrize("training", [bars, metrics])
def test_a_survived_exception_is_not_the_cause(training: Callable[[int, int], str], tmp_path: Path) -> None:
    survived = f"{training(1, 20)}\n{ODD}{training(20, 30)}\n"
    assert kinds(survived + OOM, tmp_path) == [("F037-cuda-out-of-memory", "cause"), ("exception", "earlier")]
    assert kinds(survived, tmp_path) == [("exception", "earlier")]
    assert kinds(f"{ODD}{training(0, 9)}\n{OOM}", tmp_path)[1] == ("exception", "earlier")


def test_the_same_failure_survived_once_and_not_again(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{bars(1, 20)}\n{OOM}{bars(20, 30)}\n{OOM}")
    cause, earlier = diagnose([log]).findings
    assert (cause.kind, cause.line) == ("cause", 10)
    assert (earlier.kind, earlier.line) == ("earlier", 5)


def test_the_step_that_ends_while_a_rank_dies_does_not_excuse_it(tmp_path: Path) -> None:
    dead = "[rank3]: torch.OutOfMemoryError: CUDA out of memory.\n"
    text = f"{bars(1, 20)}\n{dead}{bars(19, 21)}\n{metrics(20, 21)}"
    assert kinds(text, tmp_path) == [("F037-cuda-out-of-memory", "cause")]


def test_metrics_that_were_held_back_are_no_later_steps(tmp_path: Path) -> None:
    """Standard output to a file is written when it is full or the program ends, the bar at once."""
    assert kinds(f"{bars(1, 20)}\n{OOM}{metrics(10, 20)}", tmp_path) == [("F037-cuda-out-of-memory", "cause")]


def test_a_time_limit_ends_a_run_that_had_survived_an_exception(tmp_path: Path) -> None:
    limit = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T12:00:00 DUE TO TIME LIMIT ***\n"
    found = kinds(f"{bars(1, 9)}\n{OOM}{bars(9, 20)}\n{limit}", tmp_path)
    assert found == [("F187-time-limit", "cause"), ("F037-cuda-out-of-memory", "earlier")]


def test_more_survived_exceptions_than_are_read_hide_no_end(tmp_path: Path) -> None:
    block = f"{TRACEBACK}KeyError: 1\n" * 6000
    text = f"{bars(1, 9)}\n{block}{bars(9, 20)}\n{'idle' * 400_000}\n{ODD}"
    assert kinds(text, tmp_path)[0] == ("exception", "cause")


def test_a_loss_of_zero_is_not_excused_by_more_of_it(tmp_path: Path) -> None:
    line = "{'loss': 0.0, 'grad_norm': 1.0, 'token_acc': 0.0, 'global_step/max_steps': '%d/500'}\n"
    text = "".join(line % step for step in range(1, 50))
    assert kinds(text, tmp_path) == [("F041-sft-loss-zero", "cause")]


@pytest.mark.parametrize(
    ("first", "second"), [(RUN, RUN), (start("11:00:00"), start("11:05:00")), (f"0: {RUN}", f"0: {RUN}")]
)
def test_of_several_attempts_in_a_file_the_last_is_judged(first: str, second: str, tmp_path: Path) -> None:
    failed = f"{first}{bars(1, 20)}\n{OOM}{second}"
    assert kinds(f"{failed}{ODD}", tmp_path) == [
        ("exception", "cause"),
        ("F037-cuda-out-of-memory", "earlier"),
    ]
    assert kinds(f"{failed}{OOM}", tmp_path)[0] == ("F037-cuda-out-of-memory", "cause")
    assert kinds(failed, tmp_path) == [("F037-cuda-out-of-memory", "earlier")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (start("11:00:00"), start("11:00:20")),  # of two nodes
        (f"0: {RUN}", f"1: {RUN}"),
        (RUN.replace("rlhf.py", "rollout.py"), RUN),  # of a server and its trainer
    ],
)
def test_programs_side_by_side_are_one_attempt(first: str, second: str, tmp_path: Path) -> None:
    assert kinds(f"{first}{OOM}{second}", tmp_path) == [("F037-cuda-out-of-memory", "cause")]


def test_an_earlier_attempt_is_said_to_be_earlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(f"{RUN}{OOM}{RUN}{bars(1, 5)}\n")
    assert main([tmp_path]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Nothing wrong found after what was earlier.\n\nEARLIER, ")
    assert "F037-cuda-out-of-memory" in out
