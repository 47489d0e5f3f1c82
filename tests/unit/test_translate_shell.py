"""Reading bash without running it."""

import subprocess
from pathlib import Path

import pytest
from grpoflow.translate.shell import Command, read_script
from hypothesis import given, settings
from hypothesis import strategies as st


def words(command: Command) -> list[str]:
    return [word.text for word in command.words]


def only(text: str) -> list[str]:
    (command,) = read_script(text).commands
    return words(command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a \\\n  b", ["run", "a", "b"]),
        ("run a\\\nb", ["run", "ab"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("run --x='a b'c", ["run", "--x=a bc"]),
        ("run '{\"image\": 5}' \\\n --y 1", ["run", '{"image": 5}', "--y", "1"]),
        ('run "a \\\nb"', ["run", "a b"]),
        ("run a # b", ["run", "a"]),
        ("run a#b '# c'", ["run", "a#b", "# c"]),
        ("run 'a;b' \"c|d\" \\& x", ["run", "a;b", "c|d", "&", "x"]),
        ("run ''", ["run", ""]),
        ("run $'a\\tb'", ["run", "a\tb"]),
        ("run 2>log 1", ["run", "1"]),
        ("run 2 >log", ["run", "2"]),
        ("run a &> log &", ["run", "a"]),
        ("run a <<< b c\n", ["run", "a", "c"]),
        ('run <<<"b c"', ["run"]),
        ("X=1\nrun $X ${X} \"$X\" '$X' \\$X", ["run", "1", "1", "1", "$X", "$X"]),
        ("X='a b'\nrun $X \"$X\"", ["run", "a", "b", "a b"]),
        ('X=\nrun $X "$X" a$X', ["run", "", "a"]),
        ("X=a\nX+=b\nrun $X", ["run", "ab"]),
        ("X=a; Y=$X/b\nrun $Y", ["run", "a/b"]),
        ("run ${X:-1e-6} ${Y-$(date)}", ["run", "1e-6", "$(date)"]),
        ("X=3\nrun ${X:-1} ${Z:-${X}}", ["run", "3", "3"]),
        (
            "A=(1 '2 3'\n  4 # five\n)\nA+=(5)\nrun \"${A[@]}\" ${A[1]}",
            ["run", "1", "2 3", "4", "5", "2", "3"],
        ),
        ("A=4\nrun $((A * 8 / 2)) $((2 + 3 % 2))", ["run", "16", "3"]),
        ("N=8\nrun $(expr 16 / $N)", ["run", "2"]),
    ],
)
def test_words_as_bash_would_see_them(text: str, expected: list[str]) -> None:
    assert only(text) == expected


PIECES = st.one_of(
    st.text("ab-=/.,:{}[]%+", min_size=1, max_size=4).filter(lambda text: not set("{}[]") & set(text)),
    st.text('a b"$\\#;|\n', max_size=5).map(lambda text: f"'{text}'"),
    st.text("a b#;|'", max_size=5).map(lambda text: f'"{text}"'),
    st.sampled_from(
        ["${X}", '"$X"', '"a${Y}b"', "'$X'", "\\$", "\\#", '\\"', "\\ x", '"\\$X"', '"\\a"', "${Y:-z}"]
    ),
    st.sampled_from(
        ["${Z:-q}", '"${Z:-p q}"', "${Z:-}", "$((N * 2))", "\\\n", '"\\\n"', '"${A[@]}"', "${A[1]}"]
    ),
)
WORDS = st.lists(PIECES, min_size=1, max_size=4).map("".join)
GAPS = st.sampled_from([" ", "  ", " \\\n", "\t\\\n    "])


@given(
    st.lists(st.tuples(GAPS, WORDS), max_size=6), st.sampled_from(["", " # a 'comment", " ; true", " >&1"])
)
@settings(max_examples=40, deadline=None)
def test_words_are_those_of_bash(words: list[tuple[str, str]], end: str) -> None:
    text = "X='1 2'\nY=y\nN=4\nA=(m 'n o')\nrun" + "".join(gap + word for gap, word in words) + end + "\n"
    shell = f"set -f\nrun() {{ printf '%s\\0' \"$@\"; exit; }}\n{text}"
    printed = subprocess.run(["bash", "--norc", "-c", shell], capture_output=True, check=True).stdout
    expected = printed.decode().split("\0")[:-1] if printed != b"\0" else [""]
    command = next(command for command in read_script(text).commands if command.words[0].text == "run")
    got = [word.text for word in command.words][1:]
    assert (got or [""]) == (expected or [""])


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    script = read_script(f"run $(touch {marker}) `touch {marker}` ${{X:-$(touch {marker})}}\ntouch {marker}")
    assert not marker.exists()
    assert script.commands[0].words[1].unresolved == (f"$(touch {marker})",)


def test_every_word_knows_its_line() -> None:
    (command,) = read_script('# one\nA=1 \\\nrun --a 1 \\\n    --b "x\ny" \\\n    --c 2').commands
    assert [(word.text, word.line) for word in command.words if word.text.startswith("--")] == [
        ("--a", 3),
        ("--b", 4),
        ("--c", 6),
    ]
    assert (command.first, command.last) == (2, 6)


def test_what_the_script_leaves_open_is_named() -> None:
    (command,) = read_script('run out/$SLURM_JOB_ID-${RANK} "$@"').commands
    assert command.words[1].text == "out/$SLURM_JOB_ID-${RANK}"
    assert command.words[1].unresolved == ("$SLURM_JOB_ID", "${RANK}")
    assert command.words[2].unresolved == ("$@",)


def test_a_default_that_was_taken_is_named() -> None:
    (command,) = read_script("LR=${LR:-1e-6}\nrun $LR").commands
    assert command.words[1].assumed == ("${LR:-1e-6}",)


def test_only_exported_variables_and_prefixes_reach_a_program() -> None:
    script = read_script("A=1\nexport B=2\nC=3\nexport C\nexport D\nE=5 run\nrun")
    first, second = script.commands
    assert {name: word.text for name, word in first.env.items()} == {"B": "2", "C": "3", "E": "5"}
    assert "E" not in second.env
    assert set(script.not_exported) == {"A"}


def test_several_commands_on_a_line() -> None:
    script = read_script("a 1; b 2 && c 3 | d 4 &\n(e 5)")
    assert [words(command)[0] for command in script.commands] == ["a", "b", "c", "d", "e"]


def test_a_condition_makes_a_variable_unknown_and_is_listed() -> None:
    script = read_script('X=1\nif [ "$1" = big ]; then\n  X=2\nfi\nrun $X')
    assert script.commands[-1].words[1].unresolved == ("$X",)
    assert {item.first for item in script.unread} == {2, 3}
    assert read_script("X=1\n[ -d a ] && X=2\nrun $X").commands[-1].words[1].unresolved


def test_a_command_inside_a_block_is_kept_and_marked() -> None:
    script = read_script("for lr in 1 2; do\n  run --lr $lr\ndone\nrun --lr 3")
    inside, after = script.commands
    assert inside.condition
    assert inside.words[2].unresolved == ("$lr",)
    assert not after.condition
    assert not read_script("mkdir x && run").commands[1].condition


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("run --a 1 \\\n  # --b 2 \\\n  --c 3", 2, "a comment after a continued line"),
        ("run --a 1 \\ \n  --c 3", 1, "a blank after the backslash"),
    ],
)
def test_a_command_that_bash_cuts_short(text: str, line: int, why: str) -> None:
    script = read_script(text)
    assert [words(command) for command in script.commands] == [["run", "--a", "1"]]
    assert script.unread[0].first == line
    assert script.unread[0].why.startswith(why)
    assert script.unread[-1].text == "--c 3"
    assert f"line {line}" in script.unread[-1].why


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("run\ncat > f <<EOF\nswift rlhf --lr 1\nEOF\nrun", 3, 4),
        ("cat <<-'END'\n\tx\n\tEND\nrun", 2, 3),
        ("run > train.log", 1, 1),
        ("f() {\n run\n}", 1, 1),
        ("if true; then\n run", 1, 1),
    ],
)
def test_what_is_not_looked_at_is_listed(text: str, first: int, last: int) -> None:
    assert (first, last) in {(item.first, item.last) for item in read_script(text).unread}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('run\nA=( # (\n  --a 1\nrun "${A[@]}"\n', 2, "the parenthesis of this array"),
        ("run\nA=(a\nB=(b)\nrun\n", 2, "the parenthesis of this array"),
        ("run\nA+=(a; run\nB=b)\n", 2, "the parenthesis of this array"),
        ("run\n\nb 'a\nb\nrun", 3, "the quote '"),
        ('run\nA=("a\n"b"\n)\nrun\n', 3, 'the quote "'),
        ('run\nb "$(c\nrun\n', 2, "the $("),
        ("run\nb ${c\nrun\n", 2, "the ${"),
        ("run\nb `c\nrun\n", 2, "the `"),
    ],
)
def test_what_is_never_closed_is_one_error(text: str, line: int, what: str) -> None:
    assert subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False).returncode
    script = read_script(text)
    (found,) = script.unclosed
    assert (found.first, found.last) == (line, len(text.rstrip("\n").split("\n")))
    assert found.why.startswith(f"{what} is never closed")
    assert [words(command) for command in script.commands] == [["run"]]


def test_what_is_never_closed_within_bash_c() -> None:
    script = read_script("bash -c 'run\nA=(a' b")
    assert [item.first for item in script.unclosed] == [2]


@pytest.mark.parametrize(
    "array", ["(a $(b; c) d)", "(a <(b | c) d)", "(a # ( ;\n d)", "('(' \";\" \\( '|')", "(a)", "()"]
)
def test_an_array_that_is_closed(array: str) -> None:
    text = f"A={array}\nrun\n"
    assert not subprocess.run(
        ["bash", "-n"], input=text.encode(), capture_output=True, check=False
    ).returncode
    script = read_script(text)
    assert not script.unclosed
    assert [words(command) for command in script.commands] == [["run"]]


def test_the_text_of_bash_c_is_read() -> None:
    script = read_script("#SBATCH -N 4\nsrun --label bash -c 'NNODES=$SLURM_NNODES \\\nrun --a 1'")
    (command,) = script.commands
    assert words(command) == ["run", "--a", "1"]
    assert command.env["NNODES"].text == "4"
    assert command.words[1].line == 3


def test_windows_line_ends_are_said() -> None:
    script = read_script("run \\\r\n --a 1\r\n")
    assert words(script.commands[0]) == ["run", "--a", "1"]
    assert "Windows" in script.unread[0].why


def test_slurm_header() -> None:
    script = read_script(
        "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:a800:8\n#SBATCH -p gpu # ours\n#SBATCH --exclusive\n"
        "##SBATCH -t 10\nrun $SLURM_NNODES $SLURM_GPUS_ON_NODE\n#SBATCH -A late\n"
    )
    assert {name: (option.value, option.line) for name, option in script.header.items()} == {
        "nodes": ("2", 2),
        "gres": ("gpu:a800:8", 2),
        "partition": ("gpu", 3),
        "exclusive": ("", 4),
    }
    assert words(script.commands[0]) == ["run", "2", "8"]
    assert {item.first for item in script.unread} == {5, 7}


def test_comments_are_read_as_the_commands_they_were() -> None:
    script = read_script("# A=1 \\\n# run \\\n#   --x 2\n\n# some words\nreal")
    assert [words(command) for command in script.commands] == [["real"]]
    assert [words(command) for command in script.commented] == [["run", "--x", "2"], ["some", "words"]]
    assert script.commented[0].env["A"].text == "1"
    assert (script.commented[0].first, script.commented[0].last) == (1, 3)
