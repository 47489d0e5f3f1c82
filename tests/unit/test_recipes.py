"""Every recipe passes preflight, fits in memory, can evaluate, and leads to the commands of its golden file.

`pytest tests/unit/test_recipes.py --update` rewrites the golden files and the table of config/recipes/README.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from configurations import model_directory
from grpoflow.cli.preflight import merged
from grpoflow.commands.environment import clean_environment
from grpoflow.config import load_experiments
from grpoflow.config.document import json_schema
from grpoflow.config.load import merge
from grpoflow.plan.batch import check_batch
from grpoflow.plan.inputs import batch_spec
from grpoflow.preflight import Report, check_raw
from grpoflow.preflight.estimate import batch_of, step_time, trainer_ranks
from grpoflow.preflight.subject import Subject
from grpoflow.stages.plan import plan_document

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "config/recipes"
GOLDEN = ROOT / "tests/golden/recipes"
BASE = (ROOT / "config/clusters/a800-8x.yaml", RECIPES / "base.yaml")
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != "base")
GRAMMAR = re.compile(
    r"(?P<size>9b|27b|35b-a3b|122b-a10b|397b-a17b)(?P<sft>-sft)?-(?P<tuner>full|lora)"
    r"-(?P<mode>server|colocate|split)-(?P<nodes>\d+)n(?P<swift>-swift)?"
)
UNTRIED = {"engine_within_node"}
"""What recipes of models that no server can hold are warned of."""
GIB = 2**30


def recipe(name: str, **overlay: Any) -> dict[str, Any]:
    raw = merged([*BASE, RECIPES / f"{name}.yaml"])
    return {**raw, **overlay}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def with_model(name: str, models: Path) -> tuple[Subject, Report]:
    """The recipe with config.json of the published model."""
    raw = recipe(name)
    size = raw["model"]["path"].partition("Qwen3.5-")[2]
    configs, report = check_raw({**raw, "model": {"path": model_directory(models, size)}})
    assert configs, report
    return Subject("main", configs["main"]), report


def parts(name: str) -> dict[str, str | None]:
    found = GRAMMAR.fullmatch(name)
    assert found, f"{name} does not follow the grammar of config/recipes/README.md"
    return found.groupdict()


@pytest.mark.parametrize("name", NAMES)
def test_name_says_what_it_is(name: str) -> None:
    said, config = parts(name), load_experiments(recipe(name))["main"]
    nodes = config.trainer.nodes + (config.rollout.nodes if config.rollout.mode == "server" else 0)
    shared = config.rollout.mode == "server" and config.rollout.nodes == 0
    assert said["tuner"] == config.trainer.tuner
    assert said["mode"] == ("split" if shared else config.rollout.mode)
    assert said["nodes"] == str(nodes)
    assert bool(said["sft"]) == (config.sft is not None)
    assert bool(said["swift"]) == (config.trainer.backend == "swift")
    assert str(said["size"]).upper() == config.model.path.upper().partition("QWEN3.5-")[2]


@pytest.mark.parametrize("name", NAMES)
def test_recipe_passes_preflight(name: str, models: Path) -> None:
    subject, report = with_model(name, models)
    assert not report.skipped
    assert {problem.id for problem in report.problems} <= (UNTRIED if name.startswith("397b") else set())
    assert max(rank.peak for rank in trainer_ranks(subject)) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-swift")])
def test_recipe_could_evaluate_while_it_trains(name: str, models: Path) -> None:
    subject, _ = with_model(name, models)
    assert subject.layout.spec is not None
    spec = replace(batch_spec(subject.config), evaluates=True)
    assert check_batch(spec, subject.layout.spec) == []


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_a_minimal_difference(name: str) -> None:
    """No key repeats what the files before it say, or a default."""
    own = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    whole = load_experiments(recipe(name))["main"]
    for path in _leaves(own):
        if path in NEEDED:
            continue
        without = _without(own, path)
        configs, _ = check_raw(merge(merged(BASE), without))
        assert not configs or configs["main"] != whole, f"{path} changes nothing"


NEEDED = {"trainer.parallel", "sft.parallel"}
"""The layout is chosen where it is not given: a recipe says it all the same."""


def _leaves(raw: Any, path: str = "") -> list[str]:
    if not isinstance(raw, dict) or path in NEEDED:
        return [path]
    return [leaf for name, value in raw.items() for leaf in _leaves(value, f"{path}.{name}".strip("."))]


def _without(raw: Any, path: str) -> Any:
    name, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in raw.items() if key != name}
    return {**raw, name: _without(raw[name], rest)}


@pytest.mark.parametrize("name", [*NAMES, "base"])
def test_recipe_follows_the_schema(name: str) -> None:
    raw = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    assert list(jsonschema.Draft202012Validator(json_schema()).iter_errors(raw)) == []


def test_every_size_has_each_tuner_and_mode() -> None:
    """No server of one node holds the largest model; of the others there is a smallest and a larger one."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for name in NAMES:
        said = parts(name)
        mode = "server" if said["mode"] in ("server", "split") else "colocate"
        if not said["sft"] and not said["swift"]:
            found.setdefault((str(said["size"]), str(said["tuner"]), mode), []).append(
                int(str(said["nodes"]))
            )
    for size in ("9b", "27b", "35b-a3b", "122b-a10b"):
        for tuner in ("full", "lora"):
            for mode in ("server", "colocate"):
                assert len(set(found[size, tuner, mode])) == 2, (size, tuner, mode)
    assert found.keys() - {key for key in found if key[0] != "397b-a17b"} == {
        ("397b-a17b", "full", "colocate"),
        ("397b-a17b", "lora", "colocate"),
    }


# --- golden plans ---


@pytest.mark.parametrize("name", NAMES)
def test_golden_plan(name: str, models: Path) -> None:
    text = plan_of(name, models)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GRPOFLOW_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_plan_has_a_recipe() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(NAMES)


def plan_of(name: str, models: Path) -> str:
    """Placement and commands, one option a line; of a command on several nodes only what differs."""
    subject, _ = with_model(name, models)
    document = plan_document(replace(subject, experiment=name), Report())
    common = clean_environment(subject.config, {})
    lines = ["environment of all", *(f"  {key}={value}" for key, value in common.items() if key != "PATH")]
    lines.append("placement")
    for node in document["placement"]["nodes"]:
        for role in node["roles"]:
            lines.append(
                f"  node {node['index']}: {role['name']} on GPUs {', '.join(map(str, role['gpus']))}"
            )
    for stage in document["stages"]:
        lines.append(f"stage {stage['name']}: {stage['nodes']} x {stage['gpus_per_node']} GPUs")
        before: dict[str, Any] = {"argv": [], "env": common}
        for command in stage["commands"]:
            lines.append(f"  {command['name']} on node {command['node']}")
            changed = {key: value for key, value in command["env"].items() if before["env"].get(key) != value}
            lines += [f"    {key}={value}" for key, value in changed.items()]
            same = command["argv"] == before["argv"]
            lines += [
                f"    {line}" for line in (["(the same command)"] if same else _options(command["argv"]))
            ]
            before = command
    text = "\n".join(lines).replace(str(ROOT), "ROOT").replace(f"{models}/", "checkpoints/Qwen3.5-") + "\n"
    # identities change with every new key that shapes a run; what matters is that they are there
    return re.sub(r"\b[0-9a-f]{12}\b", "ID", text)


def _options(argv: list[str]) -> list[str]:
    words: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            words.append([])
        words[-1].append(word)
    return [" ".join(line) for line in words]


# --- the table of the README ---


def test_readme_lists_every_recipe(models: Path) -> None:
    path = RECIPES / "README.md"
    text = path.read_text()
    start, end = "<!-- recipes -->\n", "<!-- end of recipes -->\n"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    wanted = f"{head}{start}{table(models)}{end}{tail}"
    if os.environ.get("GRPOFLOW_UPDATE_GOLDEN"):
        path.write_text(wanted)
    assert path.read_text() == wanted


def table(models: Path) -> str:
    lines = [
        "| recipe | layout of the trainer | GPU memory | host memory | seconds per step |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(NAMES, key=_order):
        subject, _ = with_model(name, models)
        ranks, step, batch = trainer_ranks(subject), step_time(subject), batch_of(subject)
        assert step is not None
        assert batch is not None
        spec = subject.layout.spec
        if spec is None:
            layout = f"DeepSpeed {subject.config.trainer.deepspeed}"
        else:
            sizes = (("TP", spec.tp), ("PP", spec.pp), ("EP", spec.ep))
            layout = " ".join(f"{letter} {size}" for letter, size in sizes if size > 1 or letter == "TP")
        peak, host = max(rank.peak for rank in ranks) / GIB, max(rank.host for rank in ranks) / GIB
        gpus = subject.config.trainer.gpus or subject.config.cluster.gpus_per_node
        hosted = f"{host * gpus:.0f} GiB" if host else ""
        cells = (
            f"`{name}`",
            f"{layout}, DP {batch.dp_size}",
            f"{peak:.0f} GiB",
            hosted,
            f"{step.step_seconds:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[Any, ...]:
    said = parts(name)
    sizes = ("9b", "27b", "35b-a3b", "122b-a10b", "397b-a17b")
    return (
        sizes.index(str(said["size"])),
        said["tuner"],
        said["mode"] == "colocate",
        int(str(said["nodes"])),
        name,
    )
