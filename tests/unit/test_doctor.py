"""The doctor on logs of real runs, and its choice of the first cause."""

import json
import os
import re
from datetime import datetime
from pathlib import Path

import pytest
from grpoflow.doctor import diagnose, first_cause, main
from grpoflow.doctor.findings import Diagnosis
from grpoflow.doctor.report import render
from grpoflow.doctor.scan import MAX_COUNT, MAX_OPEN_LINES

LOGS = Path(__file__).parents[1] / "data" / "logs"
EVENING = datetime(2026, 11, 30, 20, 0).timestamp()

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.58 GiB.\n"
WATCHDOG = (
    "[rank{rank}]:[E1130 {clock}.123456789 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600004 ms\n"
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/data/rewards.py", line 7, in __call__\n    raise x\n'
)


def write(path: Path, text: str, changed: float = EVENING) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (changed, changed))
    return path


def at(clock: str) -> float:
    return datetime.fromisoformat(f"2026-11-30T{clock}").timestamp()


def ids(diagnosis: Diagnosis, kind: str = "") -> list[str]:
    return [finding.id for finding in diagnosis.findings if kind in ("", finding.kind)]


# ---------------------------------------------------------------- logs of real runs


@pytest.mark.parametrize("run", ["clean_megatron_grpo", "clean_swift_grpo", "clean_swift_sft"])
def test_a_clean_run_has_no_finding(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([LOGS / run]) == 0
    assert "Nothing wrong found." in capsys.readouterr().out


def test_a_loss_near_zero_is_called_normal(capsys: pytest.CaptureFixture[str]) -> None:
    main([LOGS / "clean_megatron_grpo"])
    assert "loss is near 0" in capsys.readouterr().out
    assert not any("loss" in note for note in diagnose([LOGS / "clean_swift_sft"]).notes)


@pytest.mark.parametrize(
    ("log", "cause", "text"),
    [
        (
            "micro_batch/trainer.log",
            "F007-prompts-per-micro-batch",
            "must be divisible by micro_batch_size (3)",
        ),
        ("single/flag.log", "F013-unknown-argument", "remaining_argv: ['--teacher_kl_coef:', '1']"),
        ("single/batch.log", "F001-group-size", "must be evenly divisible by num_generations (7)"),
        ("single/column.log", "F145-reward-column", "'key_response'"),
        ("single/unreg.log", "F144-reward-not-registered", "reward_function my_format"),
        ("single/noserver.log", "F109-rollout-unreachable", "Servers not reachable after 3.0s"),
        ("no_signal/swift.log", "exception", "Size does not match at dimension 1"),
    ],
)
def test_the_first_cause_of_a_run_that_failed(log: str, cause: str, text: str) -> None:
    found = first_cause([LOGS / log])
    assert found is not None
    assert found.id == cause
    assert text in found.text
    line = (LOGS / log).read_bytes().split(b"\n")[(found.line or 0) - 1].decode()
    assert text in line


def test_a_killed_engine_is_named_before_what_the_trainer_saw_of_it() -> None:
    diagnosis = diagnose([LOGS / "engine_killed"])
    assert diagnosis.first_cause is not None
    assert diagnosis.first_cause.id == "F120-engine-died"
    assert diagnosis.first_cause.role == "rollout"
    assert ids(diagnosis, "cause") == ["F120-engine-died"]
    assert {"F119-weight-sync-failed", "C01-child-failed"} <= set(ids(diagnosis, "consequence"))


def test_a_run_without_any_reward() -> None:
    diagnosis = diagnose([LOGS / "no_signal"])
    assert "N02-no-reward-signal" in ids(diagnosis, "cause")
    assert "S07-length-at-the-cap" in ids(diagnosis, "slow")


def test_a_policy_that_found_what_the_reward_overlooks() -> None:
    """The embedded default with a reward that took the last answer, wherever it stood."""
    diagnosis = diagnose([LOGS / "reward_hacking"])
    assert ids(diagnosis, "cause") == ["N07-reward-rises-and-falls", "N08-reward-part-falls"]
    rise, part = diagnosis.findings[:2]
    assert "reward 0.47 at first, 0.57 at its best, 0.40 at the end" in rise.text
    assert "ArithmeticFormat 1.00 at first, 0.30 at the end; completions 8 -> 16 tokens" in part.text


def test_a_reward_of_none_is_a_warning_when_the_run_went_on() -> None:
    assert ids(diagnose([LOGS / "single/none.log"])) == ["F146-reward-none"]


def test_a_moved_port_is_seen() -> None:
    (finding,) = diagnose([LOGS / "port_taken"]).findings
    assert (finding.id, finding.kind) == ("D11-port-moved", "warning")
    assert "8123" in finding.why and "8124" in finding.why


# ---------------------------------------------------------------- the first cause


def test_the_dead_rank_comes_before_the_watchdogs_of_the_others(tmp_path: Path) -> None:
    """Node 1 has no stamp before its error; node 0's watchdog is stamped ten minutes later."""
    write(
        tmp_path / "trainer-0.log", "starting\n" + WATCHDOG.format(rank=0, clock="12:10:04"), at("12:10:05")
    )
    write(tmp_path / "trainer-1.log", "starting\n" + TRACEBACK + OOM, at("12:00:03"))
    diagnosis = diagnose([tmp_path])
    assert ids(diagnosis) == ["F037-cuda-out-of-memory", "F121-nccl-watchdog"]
    assert ids(diagnosis, "cause") == ["F037-cuda-out-of-memory"]


def test_a_watchdog_yields_to_a_cause_that_may_have_been_earlier(tmp_path: Path) -> None:
    """Copied files: the log of the dead rank seems newer than the watchdog, but its lines carry no time."""
    write(tmp_path / "trainer-0.log", WATCHDOG.format(rank=0, clock="12:10:04"), EVENING)
    write(tmp_path / "trainer-1.log", "starting\n" + TRACEBACK + OOM, EVENING)
    found = first_cause([tmp_path])
    assert found is not None and found.id == "F037-cuda-out-of-memory"


def test_a_watchdog_alone_is_named(tmp_path: Path) -> None:
    log = write(tmp_path / "train.log", WATCHDOG.format(rank=2, clock="12:10:04"))
    found = first_cause([log])
    assert found is not None and found.id == "F121-nccl-watchdog"
    assert "rank that did not report" in found.fix


def test_a_hang_is_named_before_the_time_limit_that_ended_it(tmp_path: Path) -> None:
    write(tmp_path / "trainer-0.log", WATCHDOG.format(rank=2, clock="12:10:04"))
    limit = "slurmstepd: error: *** JOB 12 ON a800-0 CANCELLED AT 2026-11-30T18:00:00 DUE TO TIME LIMIT ***\n"
    write(tmp_path / "slurm-12.out", limit)
    diagnosis = diagnose([tmp_path])
    assert ids(diagnosis, "cause") == ["F121-nccl-watchdog", "F187-time-limit"]
    assert diagnosis.findings[1].role == "slurm"


def test_torchrun_and_its_siblings_are_consequences(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        TRACEBACK
        + OOM.removeprefix("[rank3]: ")
        + "W1130 12:00:05.1 6188 torch/distributed/elastic/multiprocessing/api.py:906] Sending process 6219"
        " closing signal SIGTERM\n"
        "E1130 12:00:06.8 6188 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
        " local_rank: 3 (pid: 6221) of binary: python\n"
        + TRACEBACK
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
    )
    diagnosis = diagnose([log])
    assert ids(diagnosis, "cause") == ["F037-cuda-out-of-memory"]
    assert ids(diagnosis, "consequence") == ["C02-closing-siblings", "C03-rank-ended", "C01-child-failed"]


def test_consequences_alone_name_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path / "slurm-7.out", "srun: error: a800-1: task 1: Exited with exit code 1\n")
    assert main([log]) == 1
    assert "add the logs of the other processes" in capsys.readouterr().out
    assert first_cause([log]) is None


def test_an_earlier_cause_in_another_log_wins(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device"
    write(
        tmp_path / "trainer.log",
        f"INFO 11-30 12:05:00 [a.py:1] x\n{TRACEBACK}{OOM}INFO 11-30 12:05:02 [a.py:1] x\n",
    )
    write(tmp_path / "rollout.log", f"ERROR 11-30 12:04:00 [core.py:708] {full}\n")
    found = first_cause([tmp_path])
    assert found is not None and (found.id, found.role) == ("F124-disk-full", "rollout")
    assert found.when == at("12:04:00")


def test_a_line_without_a_stamp_has_the_time_of_the_nearer_one(tmp_path: Path) -> None:
    idle = "x" * 500 + "\n"
    log = write(
        tmp_path / "train.log",
        f"[2026-11-30 09:00:00] start\n{idle}{TRACEBACK}{OOM}E1130 12:00:01.5 7 api.py:1] done\n{idle}",
    )
    found = first_cause([log])
    assert found is not None and found.when == at("12:00:01")


def test_the_stamp_before_counts_when_it_is_nearer(tmp_path: Path) -> None:
    idle = "x" * 500 + "\n"
    log = write(
        tmp_path / "train.log", f"[2026-11-30 09:00:00] start\n{TRACEBACK}{OOM}{idle}", at("13:00:00")
    )
    found = first_cause([log])
    assert found is not None and found.when == at("09:00:00")


def test_without_a_later_stamp_the_last_change_of_the_file_counts(tmp_path: Path) -> None:
    idle = "x" * 500 + "\n"
    log = write(
        tmp_path / "train.log", f"[2026-11-30 09:00:00] start\n{idle}{TRACEBACK}{OOM}", at("13:00:00")
    )
    found = first_cause([log])
    assert found is not None and found.when == at("13:00:00")


@pytest.mark.parametrize(
    ("stamp", "changed", "expected"),
    [
        ("2026-11-30T12:00:00", "2026-11-30T13:00:00", "2026-11-30T12:00:00"),
        ("[W1130 12:00:00.689116109 utils.cpp:68]", "2026-11-30T13:00:00", "2026-11-30T12:00:00"),
        ("ERROR 11-30 12:00:00 [core.py:708]", "2026-11-30T13:00:00", "2026-11-30T12:00:00"),
        ("[Mon Nov 30 12:00:00 2026]", "2026-11-30T13:00:00", "2026-11-30T12:00:00"),
        ("time      : 2026-11-30_12:00:00", "2026-11-30T13:00:00", "2026-11-30T12:00:00"),
        ("E1231 23:59:00.1 7 api.py:1]", "2027-01-01T00:30:00", "2026-12-31T23:59:00"),
        ("born 2031-05-05 00:00:00", "2026-11-30T13:00:00", "2026-11-30T13:00:00"),
        ("2026-13-45 12:00:00", "2026-11-30T13:00:00", "2026-11-30T13:00:00"),
    ],
)
def test_stamps(stamp: str, changed: str, expected: str, tmp_path: Path) -> None:
    written = datetime.fromisoformat(changed).timestamp()
    log = write(tmp_path / "train.log", f"{stamp} No space left on device\n", written)
    found = first_cause([log])
    assert found is not None and found.when == datetime.fromisoformat(expected).timestamp()


# ---------------------------------------------------------------- tracebacks


def test_an_unknown_exception_names_the_frame_outside_the_packages(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.11/site-packages/swift/rl_core/grpo_algorithm.py", line 66, in run\n'
        "    output = func(completions)\n"
        '  File "/data/my rewards.py", line 12, in __call__\n'
        "    return table[answer]\n"
        '  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode\n'
        "    raise\n"
        "KeyError: 'forty two'\n",
    )
    found = first_cause([log])
    assert found is not None
    assert (found.id, found.line, found.text) == ("exception", 8, "KeyError: 'forty two'")
    assert "/data/my rewards.py:12 in __call__" in found.why


def test_tracebacks_of_ranks_that_are_mixed(tmp_path: Path) -> None:
    lines = []
    for text in (*TRACEBACK.splitlines(), "ZeroDivisionError: division by zero"):
        lines += [f"[rank0]: {text}", f"[rank1]: {text}"]
    diagnosis = diagnose([write(tmp_path / "train.log", "\n".join(lines) + "\n")])
    (finding,) = diagnosis.findings
    assert finding.text == "[rank0]: ZeroDivisionError: division by zero"
    assert finding.count == 2
    assert "/data/rewards.py:7" in finding.why


def test_the_source_lines_of_a_traceback_are_no_messages(tmp_path: Path) -> None:
    """A frame shows the program's own error text; the cause is the last line."""
    log = write(
        tmp_path / "train.log",
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "    raise ValueError('cached_dataset is not supported for GRPO.')\nTypeError: no\n",
    )
    assert ids(diagnose([log])) == ["exception"]


def test_a_known_exception_explains_the_unknown_one_that_it_was_raised_from(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        f"{TRACEBACK}KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{TRACEBACK}ValueError: reward_function f is not implemented in swift.rewards\n",
    )
    assert ids(diagnose([log])) == ["F144-reward-not-registered"]


def test_of_two_unknown_exceptions_in_a_chain_the_first_counts(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        f"{TRACEBACK}KeyError: 'x'\n\nThe above exception was the direct cause of the following exception:\n"
        f"\n{TRACEBACK}RuntimeError: it failed\n",
    )
    assert [finding.text for finding in diagnose([log]).findings] == ["KeyError: 'x'"]


def test_a_traceback_that_was_cut_does_not_take_a_later_line_as_its_end(tmp_path: Path) -> None:
    log = write(tmp_path / "train.log", TRACEBACK + "Train: 1/2\n" * 300 + "ValueError: said a plugin\n")
    assert diagnose([log]).findings == ()


def test_a_process_that_was_killed_in_its_traceback_does_not_slow_the_rest_down(tmp_path: Path) -> None:
    cut = "".join(f"[rank5]: {line}\n" for line in TRACEBACK.splitlines())
    log = write(
        tmp_path / "train.log", cut + "Train: 1/2\n" * (MAX_OPEN_LINES + 1) + "[rank5]: ValueError: x\n"
    )
    assert diagnose([log]).findings == ()


@pytest.mark.parametrize("before", ["[INFO:swift] ", "Exception ignored in: <function f at 0x7f>\n"])
def test_handled_exceptions_are_no_cause(before: str, tmp_path: Path) -> None:
    log = write(tmp_path / "train.log", f"{before}{TRACEBACK}KeyError: 'x'\nTrain: 1/10\n")
    assert diagnose([log]).findings == ()


def test_a_warning_that_ends_a_program_is_a_cause(tmp_path: Path) -> None:
    line = (
        "swift.template.base.MaxLengthError: Current length of row(5012) is larger than the max_length(4096)."
    )
    handled = write(tmp_path / "handled.log", f"[INFO:swift] {TRACEBACK}{line}\n")
    raised = write(tmp_path / "raised.log", f"{TRACEBACK}{line}\n")
    assert diagnose([handled]).findings[0].kind == "warning"
    assert diagnose([raised]).findings[0].kind == "cause"


def test_lines_of_vllm_workers_carry_the_logger_s_prefix_on_every_line(tmp_path: Path) -> None:
    prefix = "(EngineCore_DP0 pid=71) ERROR 11-30 12:00:00 [core.py:708] "
    text = (
        TRACEBACK + "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969). Lower it.\n"
    )
    front = f"{TRACEBACK}RuntimeError: Engine core initialization failed. See root cause above.\n"
    log = write(tmp_path / "rollout.log", "".join(prefix + line for line in text.splitlines(True)) + front)
    diagnosis = diagnose([log])
    assert ids(diagnosis) == ["F077-gdn-state-blocks", "C05-engine-init-failed"]
    assert "at most 969" in diagnosis.findings[0].fix


# ---------------------------------------------------------------- programs that ended well


def test_what_a_program_survived_is_a_warning(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        f"{TRACEBACK}{OOM.removeprefix('[rank3]: ')}"
        "[INFO:swift] End time of running main: 2026-11-30 12:00:00.1\n",
    )
    diagnosis = diagnose([log])
    assert [(finding.id, finding.kind) for finding in diagnosis.findings] == [
        ("F037-cuda-out-of-memory", "warning")
    ]


def test_a_second_program_in_the_same_log_is_judged_by_itself(tmp_path: Path) -> None:
    log = write(
        tmp_path / "train.log",
        "[INFO:swift] Start time of running main: 2026-11-30 11:00:00.1\n"
        "[INFO:swift] End time of running main: 2026-11-30 12:00:00.1\n"
        "[rank1]:[W1130 12:00:01.1 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl\n"
        "[INFO:swift] Start time of running main: 2026-11-30 12:01:00.1\n"
        "[rank1]:[W1130 12:02:01.1 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl\n",
    )
    (finding,) = diagnose([log]).findings
    assert (finding.id, finding.line) == ("C04-process-group-down", 5)


def test_a_server_that_is_shut_down_says_nothing(tmp_path: Path) -> None:
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert (
        diagnose([write(tmp_path / "rollout.log", f"INFO:     Shutting down\n{TRACEBACK}{dead}")]).findings
        == ()
    )


def test_missing_kernels_count_only_where_there_is_a_gpu(tmp_path: Path) -> None:
    slow = "The fast path is not available. Falling back to torch implementation.\n"
    log = write(tmp_path / "train.log", slow)
    assert ids(diagnose([log])) == ["F048-no-fast-path"]
    write(log, "UserWarning: 'pin_memory' argument is set as true but no accelerator is found\n" + slow)
    assert ids(diagnose([log])) == []


# ---------------------------------------------------------------- files


def test_only_the_newest_attempt_is_read(tmp_path: Path) -> None:
    write(tmp_path / "attempt-9/trainer-0.log", OOM)
    write(tmp_path / "attempt-10/trainer-0.log", "Train: 1/2\n")
    diagnosis = diagnose([tmp_path])
    assert diagnosis.findings == ()
    assert "attempt-9" in diagnosis.notes[0]
    assert ids(diagnose([tmp_path / "attempt-9"])) == ["F037-cuda-out-of-memory"]


def test_checkpoints_and_other_files_are_not_read(tmp_path: Path) -> None:
    for name in ("checkpoint-5/train.log", "images/a.log", "notes.md", "model.safetensors"):
        write(tmp_path / name, TRACEBACK + OOM)
    assert diagnose([tmp_path]).findings == ()


def test_the_layout_of_our_own_results_is_read(tmp_path: Path) -> None:
    write(tmp_path / "results/main/runs/0a1b/output/logging.jsonl", '{"loss": NaN, "iteration": "1/9"}\n')
    assert ids(diagnose([tmp_path])) == ["N01-not-finite"]


def test_a_named_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    assert ids(diagnose([write(tmp_path / "notes.md", TRACEBACK + OOM)])) == ["F037-cuda-out-of-memory"]


def test_completions_tell_only_of_corrupted_weights(tmp_path: Path) -> None:
    rows = [
        json.dumps({"completion": ["Traceback (most recent call last):\nValueError: CUDA out of memory"]})
    ]
    path = write(tmp_path / "completions.jsonl", "\n".join(rows) + "\n")
    assert diagnose([path]).findings == ()
    write(path, "\n".join([*rows, json.dumps({"completion": ["<think>" + "!" * 40]})]) + "\n")
    (finding,) = diagnose([path]).findings
    assert (finding.id, finding.line) == ("F113-corrupted-weights", 2)


def test_one_finding_per_failure_over_all_files(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"trainer-{rank}.log", f"E1130 12:00:0{9 - rank}.1 7 a.py:1] {OOM}")
    (finding,) = diagnose([tmp_path]).findings
    assert finding.count == 3
    assert finding.file.endswith("trainer-2.log")


def test_a_text_that_is_repeated_forever_is_counted_up_to_a_limit(tmp_path: Path) -> None:
    line = (
        "[WARNING:swift] max_model_len(9192) - num_tokens(15) < max_tokens(9180). Setting max_tokens: 9177\n"
    )
    log = write(
        tmp_path / "rollout.log", line * (3 * MAX_COUNT) + "x" * (1 << 20) + "\n" + line * 7 + TRACEBACK + OOM
    )
    diagnosis = diagnose([log])
    assert ids(diagnosis) == ["F037-cuda-out-of-memory", "F014-completions-clipped"]
    assert diagnosis.findings[1].count == 3 * MAX_COUNT  # the block in which the limit was reached is counted


def test_missing_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tmp_path / "no", tmp_path / "neither"]) == 2
    error = capsys.readouterr().err
    assert "no," in error and "neither" in error
    assert first_cause([tmp_path / "no"]) is None


# ---------------------------------------------------------------- output


def test_json_is_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([LOGS / "engine_killed"], "json") == 1
    value = json.loads(capsys.readouterr().out)
    assert list(value) == ["first_cause", "findings"]
    keys = ["id", "kind", "file", "line", "text", "why", "fix", "evidence"]
    assert all(list(finding) == keys for finding in [value["first_cause"], *value["findings"]])
    assert value["first_cause"] == value["findings"][0]
    main([write(tmp_path / "a.log", "fine\n")], "json")
    assert json.loads(capsys.readouterr().out) == {"first_cause": None, "findings": []}


def test_an_unknown_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tmp_path], "yaml") == 2
    assert "text or json" in capsys.readouterr().err


def test_text_puts_the_first_cause_on_top_within_the_width() -> None:
    text = render(diagnose([LOGS / "engine_killed"]), colour=False, width=90)
    assert text.startswith("FIRST CAUSE\n  F120-engine-died")
    assert text.index("CONSEQUENCES") > text.index("see  ms-swift#7104")
    assert not re.search("\x1b", text)
    prose = [line for line in text.splitlines() if "/" not in line]
    assert max(map(len, prose)) <= 90


def test_colour_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    main([LOGS / "engine_killed"])
    assert "\x1b" not in capsys.readouterr().out
    assert "\x1b[1;31m" in render(diagnose([LOGS / "engine_killed"]), colour=True, width=90)
