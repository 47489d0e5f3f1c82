"""Stage report: the run on one page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
from matplotlib.figure import Figure

from grpoflow import metrics
from grpoflow.files import write_text

from .base import Stage, manifest_of, number

mpl.use("svg")

CURVES = (
    ("reward", "reward per step", "mean reward of the step's completions"),
    ("grad_norm", "gradient norm", "L2 norm before clipping"),
    ("completions/mean_length", "completion length", "tokens"),
    ("kl", "KL to the reference", "nats per token"),
)
SMOOTHING = 10
TEMPLATE = Path(__file__).with_name("report.html.j2")
ENVIRONMENT = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
ENVIRONMENT.filters["number"] = number


def report(stage: Stage) -> None:
    """Write a self-contained HTML page: curves, evaluation, exported model, time of each stage."""
    train = manifest_of(stage.input["train"])
    steps = metrics.read_steps(Path(train["directory"]) / "output" / "logging.jsonl")
    manifests = [manifest_of(path) for path in _inputs(stage) if path.endswith(".json")]
    page = ENVIRONMENT.from_string(TEMPLATE.read_text()).render(
        subject=stage.subject,
        train=train,
        evaluation=manifest_of(stage.input["evaluation"]),
        export=manifest_of(stage.input["export"]),
        model=Path(stage.input["export"]).parent / "model",
        config=stage.config,
        curves=[(title, curve(steps, key, unit)) for key, title, unit in CURVES if key in steps[-1]],
        stages=[m for m in manifests if "seconds" in m],
    )
    write_text(stage.output, page)


def _inputs(stage: Stage) -> list[str]:
    return [str(value) for value in stage.input.values() if value]


def curve(steps: list[dict[str, Any]], key: str, unit: str) -> str:
    """Draw one metric over the steps, with a moving mean; returns a data URI."""
    x = [step["step"] for step in steps if key in step]
    y = [float(step[key]) for step in steps if key in step]
    windows = [y[max(0, i - SMOOTHING + 1) : i + 1] for i in range(len(y))]
    smooth = [sum(window) / len(window) for window in windows]
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(x, y, color="#9ecae1", linewidth=1)
    axes.plot(x, smooth, color="#08519c", linewidth=2)
    axes.set(xlabel="step", ylabel=unit)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
