"""Stage preflight: what will be run, written down before anything runs."""

from __future__ import annotations

from dataclasses import asdict

from grpoflow.files import write_json
from grpoflow.plan.inputs import placement_of

from .base import Stage


def preflight(stage: Stage) -> None:
    """Write the placement of the RL job.

    Raises:
        PlanError: the nodes or GPUs do not fit.
    """
    write_json(stage.output, stage.manifest(placement=asdict(placement_of(stage.config))))
