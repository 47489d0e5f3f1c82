"""The doctor on what launchers, Slurm, NCCL and gloo write around the error of a rank."""

from pathlib import Path

import pytest
from grpoflow.doctor import diagnose
from grpoflow.doctor.findings import Diagnosis

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/data/rewards.py", line 7, in __call__\n    raise x\n'
)
STEP = "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-30T12:00:00"


def of(text: str, path: Path) -> Diagnosis:
    path.write_text(text)
    return diagnose([path])


def behind(label: str, text: str) -> str:
    return "".join(label + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("label", "process"),
    [
        ("0: ", "0:"),
        (" 3: ", "3:"),
        ("  3: ", "3:"),
        ("12: ", "12:"),
        ("[default3]:", "[default3]:"),
        ("[rank3]: ", "[rank3]:"),
        (" 3: [default3]:", "3: [default3]:"),
        ("[default3]:[rank3]: ", "[default3]:[rank3]:"),
    ],
)
def test_labels_of_launchers_are_taken_off(label: str, process: str, tmp_path: Path) -> None:
    diagnosis = of(behind(label, f"{TRACEBACK}KeyError: 'x'\n"), tmp_path / "train.log")
    (finding,) = diagnosis.findings
    assert (finding.id, finding.text) == ("exception", f"{process} KeyError: 'x'")
    assert "/data/rewards.py:7 in __call__" in finding.why


def test_tracebacks_of_padded_tasks_are_told_apart(tmp_path: Path) -> None:
    lines = TRACEBACK.splitlines()
    mixed = "".join(f" 3: {line}\n12: {line}\n" for line in lines)
    diagnosis = of(f"{mixed} 3: KeyError: 'x'\n12: IndexError: y\n", tmp_path / "train.log")
    assert [finding.text for finding in diagnosis.findings] == ["3: KeyError: 'x'", "12: IndexError: y"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"{STEP} DUE TO TIME LIMIT ***", "F187-time-limit"),
        (f"{STEP.replace('slurmstepd', 'slurmstepd-n1')} DUE TO PREEMPTION ***", "F187-time-limit"),
        (
            "[2026-11-30T12:00:00.123] error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-30T12:00:00 DUE TO TIME"
            " LIMIT ***",
            "F187-time-limit",
        ),
        (f"{STEP} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "F187-node-failure"),
        ("srun: error: Node failure on n3", "F187-node-failure"),
        ("error: Node failure on n3", "F187-node-failure"),
        (f"{STEP} ***", "D04-cancelled"),
        (f"{STEP} DUE to SIGNAL Terminated ***", "D04-cancelled"),
        (f"{STEP} DUE TO JOB REQUEUE ***", "D04-cancelled"),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 4711.batch cgroup.",
            "F186-host-out-of-memory",
        ),
        ("Detected 2 oom_kill events in StepId=4711.0.", "F186-host-out-of-memory"),
        ("srun: error: n1: tasks 0-7: Out Of Memory", "F186-host-out-of-memory"),
        ("slurmstepd: error: Exceeded job memory limit", "F186-host-out-of-memory"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", "F186-host-out-of-memory"),
        (
            "slurmstepd: error: Job 4711 exceeded memory limit (9 > 8), being killed",
            "F186-host-out-of-memory",
        ),
        (
            "srun: error: Unable to create step for job 4711: Memory required by task is not available",
            "D14-no-step",
        ),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "D13-submission-refused"),
        (
            "srun: error: Unable to allocate resources: Invalid partition name specified",
            "D13-submission-refused",
        ),
        ("srun: error: task 3 launch failed: Invalid job credential", "D15-launch-failed"),
        ("error: task 3 launch failed", "D15-launch-failed"),
        (
            "srun: error: Task launch for StepId=4711.0 failed on node n1: Socket timed out",
            "D15-launch-failed",
        ),
        ("srun: error: n1: tasks 0-7: Killed", "D03-killed"),
        ("slurmstepd: error: execve(): swift: No such file or directory", "D16-no-such-program"),
        ("/var/spool/slurmd/job4711/slurm_script: line 8: swift: command not found", "D16-no-such-program"),
    ],
)
def test_slurm_s_own_failures(line: str, cause: str, tmp_path: Path) -> None:
    diagnosis = of(f"starting\n{line}\n", tmp_path / "slurm-4711.out")
    assert [(finding.id, finding.line) for finding in diagnosis.findings] == [(cause, 2)]
    assert diagnosis.first_cause is not None and diagnosis.first_cause.role == "slurm"


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: n1: task 0: Aborted (core dumped)",
        "srun: error: n1: tasks 0-7: Aborted",
        "  exitcode  : -6 (pid: 6218)",
        "  traceback : Signal 6 (SIGABRT) received by PID 6218",
        "Fatal Python error: Aborted",
        "terminate called after throwing an instance of 'c10::Error'",
    ],
)
def test_an_abort_is_the_cause_only_if_nothing_else_is(line: str, tmp_path: Path) -> None:
    alone = of(f"starting\n{line}\n", tmp_path / "alone.log").first_cause
    assert alone is not None and alone.id == "D17-aborted"
    watchdog = "[rank3]:[E1130 15:45:08.888 ProcessGroupNCCL.cpp:685] Watchdog caught collective operation"
    waited = of(f"{watchdog} timeout: WorkNCCL(SeqNum=7)\n{line}\n", tmp_path / "train.log").first_cause
    assert waited is not None and waited.id == "F121-nccl-watchdog"


@pytest.mark.parametrize(
    "line", ["srun: Force Terminated StepId=4711.0", "srun: error: n1: tasks 0-7: Terminated"]
)
def test_what_srun_ends_is_no_cause(line: str, tmp_path: Path) -> None:
    found = of(f"starting\n{line}\n", tmp_path / "train.log")
    assert [(finding.id, finding.kind) for finding in found.findings] == [("C06-srun-task", "consequence")]


def test_a_refusal_names_its_reason(tmp_path: Path) -> None:
    line = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
    found = of(line, tmp_path / "slurm-4711.out").first_cause
    assert found is not None and "Invalid qos specification" in found.why


@pytest.mark.parametrize(
    "text",
    [
        "n1:1:2 [0] NCCL WARN Cuda failure 'out of memory'\n",
        "n1:1:2 [0] enqueue.cc:1446 NCCL WARN Cuda failure 2 'out of memory'\n",
        f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled"
        " cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure"
        " 2 'out of memory'\n",
        f"{TRACEBACK}RuntimeError: CUDA driver error: out of memory\n",
        f"{TRACEBACK}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`\n",
    ],
)
def test_memory_that_ran_out_in_a_library_is_memory(text: str, tmp_path: Path) -> None:
    diagnosis = of(text, tmp_path / "train.log")
    causes = [finding.id for finding in diagnosis.findings if finding.kind == "cause"]
    assert causes == ["F037-cuda-out-of-memory"]


@pytest.mark.parametrize(
    "waiting",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3456",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:544] Read error [10.0.0.1]:3: Connection reset by peer",
        "RuntimeError: Application timeout caused pair closure",
        "RuntimeError: [c10d] send failed: Broken pipe",
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] timed out",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting",
        "torch.distributed.DistNetworkError: Connection closed by peer",
        "EOFError",
    ],
)
def test_what_the_ranks_that_live_say_of_a_dead_one_is_a_consequence(waiting: str, tmp_path: Path) -> None:
    alive = behind("[rank0]: ", f"{TRACEBACK}{waiting}\n")
    dead = behind("[rank1]: ", f"{TRACEBACK}KeyError: 'y'\n")
    diagnosis = of(alive + dead, tmp_path / "train.log")
    assert diagnosis.first_cause is not None
    assert diagnosis.first_cause.text == "[rank1]: KeyError: 'y'"
    assert [finding.kind for finding in diagnosis.findings] == ["cause", "consequence"]


def test_a_killed_data_worker_is_a_killed_process(tmp_path: Path) -> None:
    line = f"{TRACEBACK}RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. \n"
    assert [finding.id for finding in of(line, tmp_path / "train.log").findings] == ["D03-killed"]


UNKNOWN_TYPE = (
    "The checkpoint you are trying to load has model type `qwen3_5` but Transformers does not recognize this"
    " architecture. This could be because of an issue with the checkpoint.\n"
)


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACEBACK}KeyError: 'qwen3_5'\n\nDuring handling of the above exception, another exception"
        f" occurred:\n\n{TRACEBACK}ValueError: {UNKNOWN_TYPE}",
        f"{TRACEBACK}KeyError: 'qwen3_5'\n\nThe above exception was the direct cause of the following"
        f" exception:\n\n{TRACEBACK}ValueError: {UNKNOWN_TYPE}",
        f"{TRACEBACK}pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, {UNKNOWN_TYPE}",
    ],
)
def test_a_model_type_that_transformers_does_not_know_is_one_finding(text: str, tmp_path: Path) -> None:
    (finding,) = of(text, tmp_path / "train.log").findings
    assert (finding.id, finding.kind) == ("F060-unknown-model-type", "cause")
    assert "too old for the model type qwen3_5" in finding.why
