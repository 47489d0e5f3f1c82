"""Files are complete or absent, and the first of several writers wins."""

import multiprocessing
from pathlib import Path

import pytest
from grpoflow.files import (
    create_once,
    fingerprint,
    new_log_directory,
    point,
    read_json,
    replacing,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def _race(path: Path, writer: int) -> bool:
    return create_once(path, writer)


def test_create_once_lets_one_of_many_writers_win(tmp_path: Path) -> None:
    path = tmp_path / "end.json"
    with multiprocessing.Pool(4) as pool:
        won = pool.starmap(_race, [(path, writer) for writer in range(40)])
    assert sum(won) == 1
    assert read_json(path) == won.index(True)
    assert [p.name for p in tmp_path.iterdir()] == ["end.json"]


def test_point_replaces_a_link_with_a_relative_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point(tmp_path / "latest", tmp_path / name)
    assert (tmp_path / "latest").readlink() == Path("two")


def test_log_directories_are_never_used_twice(tmp_path: Path) -> None:
    first, second = new_log_directory(tmp_path), new_log_directory(tmp_path)
    assert (first.name, second.name) == ("attempt-1", "attempt-2")
    assert (tmp_path / "latest").resolve() == second
    for name in ("attempt-2.tar.gz", "attempt-old"):  # a person's
        (tmp_path / name).touch()
    assert new_log_directory(tmp_path).name == "attempt-3"


@pytest.mark.parametrize("change", ["content", "end of a large file", "name", "nothing"])
def test_fingerprint_tells_directories_apart(tmp_path: Path, change: str) -> None:
    size = 3 << 20
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(bytes(size))
    b = tmp_path / "b"
    if change == "content":
        (b / "config.json").write_text("[]")
    elif change == "end of a large file":
        (b / "model.safetensors").write_bytes(bytes(size - 1) + b"x")
    elif change == "name":
        (b / "config.json").rename(b / "other.json")
    assert (fingerprint(tmp_path / "a") == fingerprint(b)) == (change == "nothing")
