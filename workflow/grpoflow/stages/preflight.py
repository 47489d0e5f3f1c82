"""Stage preflight: everything that is wrong, and what will be run, written down before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from grpoflow.files import write_json, write_text
from grpoflow.launch.job import SubmissionFailed
from grpoflow.preflight import check
from grpoflow.preflight.rules import Need
from grpoflow.preflight.subject import Subject
from grpoflow.preflight.text import report_text

from .allocation import asked_of_slurm, launcher_of, script_of
from .base import Stage, StageFailed
from .plan import plan_document

TEMPLATE = Path(__file__).with_name("plan.html.j2")
GIB = 2**30


def preflight(stage: Stage) -> None:
    """Check the configuration, and the checkpoint where it is there; write the plan.

    Raises:
        StageFailed: the configuration is refused; the message is the report. Or Slurm would refuse the RL job
            (`sbatch --test-only`, where a controller answers), or nothing says where it is to run.
    """
    launcher = launcher_of(stage.resources)  # the first stage: not after hours of SFT
    config = stage.config
    needs: list[Need] = ["config"]
    if (Path(config.model.path) / "config.json").is_file():
        needs.append("checkpoint")
    report = check({stage.subject: config}, tuple(needs), stage.resources)
    text = report_text(report)
    if report.verdict == "refuse":
        raise StageFailed(f"the configuration is refused\n\n{text}")
    stage.say(f"{report.verdict}\n{text}")
    try:
        document = plan_document(Subject(stage.subject, config, stage.resources), report)
    except ValueError as error:
        raise StageFailed(f"there is no plan; a check that refuses is switched off: {error}") from error
    if launcher == "slurm":
        document["slurm"] = _asked(stage)
        stage.say(f"Slurm: {document['slurm']}")
    write_text(stage.output.with_suffix(".html"), plan_html(document))
    write_json(stage.output, stage.manifest(**document))


def _asked(stage: Stage) -> str:
    try:
        return asked_of_slurm(script_of(stage.subject, stage.config, stage.resources))
    except SubmissionFailed as error:
        raise StageFailed(
            f"{error}\nthe job: grpoflow plan --sbatch, resources of the rule train_grpo"
        ) from error


def plan_html(document: dict[str, Any]) -> str:
    """The plan as a self-contained page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["gib"] = lambda size: f"{size / GIB:.1f} GiB"
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(plan=document)
