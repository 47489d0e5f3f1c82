"""Files that the doctor cannot read as they are: packed, cut, empty, of another kind."""

import gzip
import os
import socket
from pathlib import Path

import pytest
from grpoflow.doctor import diagnose, first_cause, main

FAILED = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n"


@pytest.mark.parametrize("name", ["trainer.log.gz", "trainer.log"])
def test_a_packed_log_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(f"starting\n{FAILED}".encode()))
    for path in (tmp_path, tmp_path / name):
        found = first_cause([path])
        assert found is not None
        assert (found.text, found.line) == ("KeyError: 'x'", 4)


def test_packed_metrics_are_read(tmp_path: Path) -> None:
    metrics = b'{"loss": NaN, "iteration": "1/9"}\n'
    (tmp_path / "logging.jsonl.gz").write_bytes(gzip.compress(metrics))
    (finding,) = diagnose([tmp_path]).findings
    assert finding.id == "N01-not-finite"


def test_of_a_packed_log_that_is_cut_the_beginning_counts(tmp_path: Path) -> None:
    noise = "".join(f"{number * 7919 % 10007}\n" for number in range(20_000))
    packed = gzip.compress(f"{FAILED}{noise}".encode())
    (tmp_path / "trainer.log.gz").write_bytes(packed[: len(packed) // 2])
    diagnosis = diagnose([tmp_path])
    assert [finding.text for finding in diagnosis.findings] == ["KeyError: 'x'"]
    assert "trainer.log.gz: read up to byte " in diagnosis.unread[0]


@pytest.mark.parametrize("named", [True, False])
def test_an_empty_log_is_no_good_news(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "trainer.log"
    log.touch()
    assert main([log if named else tmp_path]) == 2
    out = capsys.readouterr().out
    assert "Nothing to judge" in out and "trainer.log: empty" in out


def test_a_directory_without_logs_is_no_good_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tmp_path]) == 2
    assert "Nothing to judge" in capsys.readouterr().out
    assert main([tmp_path], "json") == 2
    assert "nothing to judge" in capsys.readouterr().err


def test_an_empty_log_beside_others_is_nothing_to_speak_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stderr").touch()
    (tmp_path / "trainer.log").write_text("fine\n")
    assert main([tmp_path]) == 0
    assert capsys.readouterr().out == "Nothing wrong found.\n"


def odd_files(directory: Path) -> None:
    (directory / "gone.log").symlink_to("nowhere")
    (directory / "round.log").symlink_to("round.log")
    (directory / "broken.log").symlink_to("/proc/self/mem")  # a regular file whose first byte cannot be read
    os.mkfifo(directory / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket.log"))
    (directory / "old.log").write_bytes(b"\xfd7zXZ\0\0\4rest")


def test_odd_files_stop_nothing_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    odd_files(Path())
    Path("trainer.log").write_text(FAILED)
    diagnosis = diagnose([Path()])
    assert [finding.text for finding in diagnosis.findings] == ["KeyError: 'x'"]
    assert diagnosis.unread == (
        "broken.log: Input/output error",
        "gone.log: No such file or directory",
        "old.log: packed by xz: unpack it first",
        "pipe.log: no regular file",
        "round.log: Too many levels of symbolic links",
        "socket.log: no regular file",
    )


def test_odd_files_alone_are_no_good_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    odd_files(Path())
    assert main([Path()]) == 2
    for name in ("pipe.log", "old.log", "broken.log"):
        assert main([Path(name)]) == 2
        assert name in capsys.readouterr().out
    assert main([Path("gone.log")]) == 2
    assert "no such file or directory: gone.log" in capsys.readouterr().err
    assert first_cause([Path("gone.log"), Path("pipe.log")]) is None
