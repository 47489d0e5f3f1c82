"""Freezing a data set: every faulty row is found, with its number and reason, and no good one is lost."""

import base64
import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpoflow.freeze import Measured, Media, NotEncodable, Seen, Split, freeze, summary
from grpoflow.preflight.estimate import count_rows
from grpoflow.readers import DataError, records

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
MAX_LENGTH = 50


def prompt(text: str, **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "solution": "4", **columns}


def count_words(row: dict[str, Any]) -> Measured | NotEncodable:
    """Stands for template and tokenizer: a token per word, and 10 per image, whose file must be one."""
    for image in row.get("images", ()):
        if not _content(image).startswith(PNG[:8]):
            return NotEncodable("unreadable media", f"{image} is torn")
    images = 10 * len(row.get("images", ()))
    return Measured(sum(len(m["content"].split()) for m in row["messages"]) + images, images)


def _content(image: str) -> bytes:
    inline = image.partition(";base64,")[2]
    return base64.b64decode(inline) if inline else Path(image).read_bytes()


class Frozen:
    def __init__(self, split: Split, rows: list[dict[str, Any]], refused: list[dict[str, Any]]):
        self.split, self.rows, self.refused = split, rows, refused


Freezer = Callable[..., Frozen]


@pytest.fixture
def run(tmp_path: Path) -> Freezer:
    """Freeze rows (values, or lines as bytes), or a file, as `train`, after `val`."""
    seen = Seen()

    def freezer(source: list[Any] | Path, name: str = "train", **options: Any) -> Frozen:
        if isinstance(source, list):
            lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in source]
            source = tmp_path / f"{name}-source.jsonl"
            source.write_bytes(b"\n".join(lines) + b"\n")
        refused, target = io.StringIO(), tmp_path / f"{name}.jsonl"
        media = Media(tmp_path / "work/media", tmp_path / "final/media")
        defaults = {"measure": count_words, "required": ("solution",), "max_length": MAX_LENGTH}
        split = freeze(name, source, target, seen, refused, media=media, **{**defaults, **options})
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        return Frozen(split, rows, [json.loads(line) for line in refused.getvalue().splitlines()])

    return freezer


FAULTS: dict[str, Any] = {
    "not valid JSON": b'{"messages": [',
    "not valid UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}], "solution": "4"}',
    "not a JSON object": [1, 2],
    "no messages": {"solution": "4"},
    "a message without role": {"messages": [{"content": "What?"}], "solution": "4"},
    "a message without content": prompt(" \n"),
    "the last message is the assistant's": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "solution": "4",
    },
    "column solution is missing": prompt("Lost", solution=None),
    "column solution holds a number, in other rows text": prompt("Typed", solution=4),
    "text with half of a surrogate pair": prompt("\ud83d"),
    "longer than data.max_length": prompt("word " * (MAX_LENGTH + 1)),
    "images: file not found": prompt("Look", images=["absent.png"]),
    "unreadable media": prompt("Look closer", images=["torn.png"]),
    "duplicate prompt": prompt("Good 7"),
    "prompt is also in val": prompt("Held out"),
}


def test_ten_thousand_rows_with_one_percent_of_faults(run: Freezer, tmp_path: Path) -> None:
    (tmp_path / "torn.png").write_bytes(b"not an image")
    (tmp_path / "good.png").write_bytes(PNG)
    good = [prompt(f"Good {index}") for index in range(9900)]
    good[500] = prompt("Seen", images=["good.png"])
    names = [list(FAULTS)[index % len(FAULTS)] for index in range(100)]
    faulty = [FAULTS[name] for name in names]
    positions = sorted(random.Random(0).sample(range(1000, 10_000), 100))
    rows: list[Any] = []
    remaining = iter(good)
    planted = dict(zip(positions, zip(names, faulty, strict=True), strict=True))
    for index in range(10_000):
        rows.append(planted[index][1] if index in planted else next(remaining))

    run([prompt("Held out")], "val")
    frozen = run(rows)

    found = {entry["row"]: entry["reason"] for entry in frozen.refused}
    assert found == {index + 1: name for index, (name, _) in planted.items()}
    assert frozen.split.kept == 9900
    texts = {row["messages"][0]["content"] for row in frozen.rows}
    assert texts == {row["messages"][0]["content"] for row in good}
    assert frozen.split.rejected.total() == 100


@pytest.mark.parametrize("reason", FAULTS)
def test_each_fault_alone(run: Freezer, tmp_path: Path, reason: str) -> None:
    (tmp_path / "torn.png").write_bytes(b"not an image")
    run([prompt("Held out")], "val")
    frozen = run([prompt("Good 7"), FAULTS[reason], prompt("Good 8")])
    assert frozen.split.rejected == {reason: 1}
    assert [(entry["row"], entry["reason"]) for entry in frozen.refused] == [(2, reason)]
    assert [row["messages"][0]["content"] for row in frozen.rows] == ["Good 7", "Good 8"]


def test_prompts_that_differ_only_in_outer_space_are_duplicates(run: Freezer) -> None:
    frozen = run([prompt("What is 2 + 2?"), prompt(" What is 2 + 2?\n")])
    assert frozen.refused[0]["reason"] == "duplicate prompt"


def test_the_same_question_about_another_image_is_no_duplicate(run: Freezer, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    frozen = run([prompt("What is it?", images=["a.png"]), prompt("What is it?", images=["b.png"])])
    assert frozen.split.kept == 2
    assert frozen.rows[0]["images"] == [str(tmp_path / "a.png")]
    assert frozen.split.most_images == 1
    assert frozen.split.facts()["image_tokens"]["mean"] == 10


def test_an_image_within_the_row_needs_no_file(run: Freezer) -> None:
    inline = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    frozen = run([prompt("What is it?", images=[inline])])
    assert [row["images"] for row in frozen.rows] == [[inline]]


def test_parts_of_a_message_become_its_text(run: Freezer, tmp_path: Path) -> None:
    """As ms-swift makes of them while it trains; an evaluation could not find its prompts again."""
    (tmp_path / "a.png").write_bytes(PNG)
    parts = [
        {"type": "text", "text": "Is "},
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "it?"},
    ]
    url = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "And this?"}]
    placed = [{"type": "image"}, {"type": "text", "text": "Where?"}]
    asked: list[Any] = [prompt(parts), prompt(url), prompt(placed, images=["a.png"])]
    frozen = run(asked)
    texts = [row["messages"] for row in frozen.rows]
    contents = ["Is <image>it?", "<image>And this?", "<image>Where?"]
    assert texts == [[{"role": "user", "content": content}] for content in contents]
    assert [row["images"] for row in frozen.rows] == [[str(tmp_path / "a.png")]] * 3


PARTS = {
    "images: in the messages and in the row": ([{"type": "image", "image": "b.png"}], {"images": ["b.png"]}),
    "a part of a message that is no text, image, video or audio: 'tool_use'": ([{"type": "tool_use"}], {}),
    "a part of a message that is no text, image, video or audio: None": (["text"], {}),
    "images: file not found": ([{"type": "image", "image": "b.png"}], {}),
    "a message without content": ([{"type": "text", "text": " "}], {}),
}


@pytest.mark.parametrize("reason", PARTS)
def test_parts_that_ms_swift_cannot_join_are_rejected(run: Freezer, reason: str) -> None:
    parts, columns = PARTS[reason]
    asked: Any = parts
    assert [entry["reason"] for entry in run([prompt(asked, **columns)]).refused] == [reason]


def test_conversations_may_repeat_but_not_show_a_held_out_prompt(run: Freezer) -> None:
    def answer(text: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "4"}]
        return {"messages": messages}

    run([prompt("Held out")], "val")
    run([prompt("Known")])
    rows = [answer("Known"), answer("Known"), answer("Held out"), prompt("Open")]
    options = {"measure": None, "required": (), "max_length": None, "answered": True}
    frozen = run(rows, "sft", **options)
    assert frozen.split.kept == 2
    reasons = {entry["row"]: entry["reason"] for entry in frozen.refused}
    assert reasons == {3: "prompt is also in val", 4: "the last message is not the assistant's"}


def test_a_column_that_comes_late_comes_first(run: Freezer, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    rows = [prompt(f"Text {index}", images=[]) for index in range(5)]
    rows += [prompt("Look", images=["a.png"], level=3), prompt("Last")]
    frozen = run(rows)
    assert [row["messages"][0]["content"] for row in frozen.rows] == [
        *("Text 0", "Look", "Text 1", "Text 2", "Text 3", "Text 4", "Last")
    ]
    assert frozen.split.columns == {"messages", "solution", "images", "level"}


def test_embedded_images_become_files(tmp_path: Path) -> None:
    media = Media(tmp_path / "work/media", tmp_path / "final/media")
    path = media.store(PNG)
    assert path.read_bytes() == PNG
    assert path.suffix == ".png"
    assert media.finally_at(str(path)) == str(
        tmp_path / "final/media" / path.relative_to(tmp_path / "work/media")
    )


FORMS = {
    "query": {"query": "Hi"},
    "prompt with system": {"prompt": "Hi", "system": "Be brief."},
    "prompt of messages": {"prompt": [{"role": "user", "content": "Hi"}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "Hi"}]},
    "Alpaca": {"instruction": "Hi", "input": ""},
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_become_messages(run: Freezer, form: str) -> None:
    (row,) = run([{**FORMS[form], "solution": "4"}]).rows
    user = {"role": "user", "content": "Hi"}
    assert row["messages"][-1] == user
    assert row["messages"][:-1] == ([{"role": "system", "content": "Be brief."}] if "system" in form else [])
    assert row["solution"] == "4"


ROWS = [prompt(f"Question {index}, with a comma\nand a line", solution=str(index)) for index in range(300)]


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as content:
        writer = csv.writer(content)
        writer.writerow(["question", "solution"])
        writer.writerows([row["messages"][0]["content"], row["solution"]] for row in ROWS)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": lambda path: path.write_text("\n\n".join(map(json.dumps, ROWS))),
    "bom.jsonl": lambda path: path.write_text("\ufeff" + "\r\n".join(map(json.dumps, ROWS))),
    "a.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "lines.json": lambda path: path.write_text("\n".join(map(json.dumps, ROWS))),
    "a.csv": write_csv,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(
    run: Freezer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("grpoflow.readers.CHUNK", 100)  # records cross the borders of what is read at once
    WRITERS[name](tmp_path / name)
    frozen = run(tmp_path / name)
    assert frozen.rows == ROWS
    assert frozen.refused == []


@pytest.mark.parametrize(("name", "rows"), [*((name, len(ROWS)) for name in WRITERS), ("a.parquet", None)])
def test_the_plan_counts_the_rows_of_every_format(tmp_path: Path, name: str, rows: int | None) -> None:
    """Of `epochs` it follows how long a training takes; Parquet only the training environment can read."""
    WRITERS.get(name, Path.touch)(tmp_path / name)
    assert count_rows(str(tmp_path / name)) == rows
    assert count_rows(str(tmp_path / "absent.json")) is None


def test_a_directory_of_files_is_one_data_set(run: Freezer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for index in range(2):
        (tmp_path / f"data/part-{index}.jsonl").write_text(json.dumps(prompt(f"Part {index}")) + "\n")
    assert [row["messages"][0]["content"] for row in run(tmp_path / "data").rows] == ["Part 0", "Part 1"]


def test_training_and_test_files_are_not_one_data_set(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"):
        (tmp_path / name).write_text(json.dumps(prompt(name)) + "\n")
    with pytest.raises(DataError, match="has several splits"):
        list(records(tmp_path))
    (tmp_path / "test-00000-of-00001.jsonl").unlink()
    assert len(list(records(tmp_path))) == 2


def test_repeated_held_out_prompts_are_rejected(run: Freezer) -> None:
    frozen = run([prompt("Held out"), prompt("Another"), prompt("Held out")], "val")
    entry = {"split": "val", "row": 3, "reason": "duplicate prompt"}
    assert [{**found, **entry} for found in frozen.refused] == frozen.refused
    assert frozen.split.kept == 2


def test_broken_array_says_where(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"a": 2}, {"a": ')
    with pytest.raises(DataError, match="not valid JSON after row 2"):
        list(records(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.xlsx", "unknown format; legal: .jsonl"), ("absent.jsonl", "no such file"), ("empty", "no data")],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a.xlsx").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        list(records(tmp_path / name))


def test_saved_splits_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=f"legal: {tmp_path}/train, {tmp_path}/test"):
        list(records(tmp_path))


def test_a_row_of_csv_with_too_few_fields_is_rejected(run: Freezer, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,solution\nOne?,1\nTwo?\nThree?,3\n")
    frozen = run(tmp_path / "a.csv")
    assert frozen.refused[0]["row"] == 2
    assert frozen.split.kept == 2


def test_summary_of_lengths() -> None:
    found = summary({10: 50, 20: 49, 100: 1})
    assert (found["min"], found["p50"], found["p90"], found["p99"], found["max"]) == (10, 10, 20, 20, 100)
    assert sum(count for _, count in found["histogram"]) == found["count"] == 100
    assert found["mean"] == pytest.approx(15.8)
    assert summary({}) == {"count": 0}
