"""The pages of docs/ show what the program does: commands, outputs, tables, links.

`scripts/make-docs` rewrites outputs and tables; read the difference.
"""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpoflow.cli import parser
from grpoflow.cli.preflight import merged
from grpoflow.facts.arguments import load_catalogue
from grpoflow.preflight import check_raw

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/make-docs"))
PAGES: list[Path] = MAKE["PAGES"]
SOURCE = re.compile(r"(?<![\w/#])#\d{2,}|(?<!\w)issue \d+")
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?!https?:)([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
RELEASE = "4.6.0"


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


# --- commands ---


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: page.stem)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = request.param
    scratch = MAKE["make_scratch"](tmp_path_factory.mktemp(path.stem))
    text = path.read_text(encoding="utf-8")
    renewed, runs = MAKE["run_page"](text, scratch)
    return {"path": path, "text": text, "renewed": renewed, "runs": runs, "scratch": scratch}


def calls(page: dict[str, Any], *programs: str) -> list[list[str]]:
    """What a page called of the programs that are stand-ins: their words."""
    written = page["scratch"] / "calls"
    lines = written.read_text().splitlines() if written.exists() else []
    found = [line.split("\0")[:-1] for line in lines]
    return [call for call in found if call[0] in {f"bin/{program}" for program in programs}]


def test_commands_end_as_the_page_says(page: dict[str, Any]) -> None:
    for run in page["runs"]:
        assert run.code == run.expected, f"{run.script}\n{run.output}"
        assert "Traceback" not in run.output


def test_outputs_and_tables_are_up_to_date(page: dict[str, Any]) -> None:
    assert page["text"] == page["renewed"], "run scripts/make-docs"


def test_snakemake_understands_its_arguments(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from snakemake.cli import parse_args  # noqa: PLC0415 - it takes a second

    monkeypatch.chdir(page["scratch"])
    for call in calls(page, "snakemake"):
        _, arguments = parse_args(call[1:])
        files = [Path(file) for file in arguments.configfile]
        configs, report = check_raw(merged(files))
        assert report.verdict != "refuse", report
        assert all(Path(config.data.train).is_file() for config in configs.values())


def test_arguments_of_the_training_programs_exist(page: dict[str, Any]) -> None:
    catalogue = load_catalogue(RELEASE)
    for call in calls(page, "swift", "megatron"):
        command = f"{Path(call[0]).name} {call[1]}"
        problems = [p for p in catalogue.check_argv(command, call[2:]) if p.severity == "error"]
        assert problems == []


def test_scripts_of_python_are_there(page: dict[str, Any]) -> None:
    assert all((ROOT / call[1]).is_file() for call in calls(page, "python"))


def test_the_dag_of_the_guide_is_planned(tmp_path: Path) -> None:
    """The first dry run of the guide, by Snakemake itself."""
    scratch = MAKE["make_scratch"](tmp_path)
    guide = (DOCS / "guide.md").read_text()
    (configuration,) = re.findall(r"```bash\n(cat > mine.yaml.*?)\n```", guide, re.DOTALL)
    script = f"{configuration}\n{sys.executable} -m snakemake --profile slurm --configfile $FILES -n"
    done = subprocess.run(["bash", "-c", script], cwd=scratch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"cache_dataset", "convert_to_mcore", "train_grpo", "export_hf"} <= set(done.stdout.split())


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_commands_within_a_line_are_understood(path: Path) -> None:
    for command in re.findall(r"`(grpoflow [^`]+)`", prose(path)):
        words = shlex.split(command)[1:]
        try:
            parser().parse_args(words if len(words) > 1 else [*words, "--help"])
        except SystemExit as ended:
            assert ended.code == 0, command


# --- text ---


@pytest.mark.parametrize("path", MAKE["TRANSLATIONS"], ids=lambda path: path.name)
def test_translation_has_the_blocks_and_sections_of_the_original(path: Path) -> None:
    original: Path = MAKE["TRANSLATIONS"][path]
    text, theirs = path.read_text(encoding="utf-8"), original.read_text(encoding="utf-8")
    assert MAKE["take_over"](text, theirs) == text, "run scripts/make-docs"
    assert levels(text) == levels(theirs)


def levels(text: str) -> list[str]:
    """How deep the headings of a page are, in their order."""
    return [line.split()[0] for line in FENCE.sub("", text).splitlines() if line.startswith("#")]


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(prose(path)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            assert anchor in [slug(heading) for heading in HEADING.findall(prose(target))], link


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_issues_are_named_with_their_repository(path: Path) -> None:
    assert SOURCE.findall(prose(path)) == []


def test_the_worked_example_has_every_parameter() -> None:
    script = (ROOT / "tests/data/public_cases/grpo_9b_swift_8289.sh").read_text()
    options = set(re.findall(r"--(\w+)", script))
    section = (DOCS / "questions.md").read_text().partition("## The 9B case, parameter by parameter")[2]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))))
    assert len(options) > 40
    assert options - named == set()


@pytest.mark.parametrize(("issue", "questions"), [("ms-swift#8289", 4), ("ms-swift#8145", 5)])
def test_every_question_is_answered(issue: str, questions: int) -> None:
    section = (DOCS / "questions.md").read_text().partition(f"\n## {issue}\n")[2].partition("\n## ")[0]
    answers = re.split(r"^\*\*\(\d\) ", section, flags=re.MULTILINE)[1:]
    assert len(answers) == questions
    assert all(LINK.search(answer) for answer in answers)
