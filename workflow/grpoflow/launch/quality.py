"""Judging what a training produces while it runs (grpoflow.gates): the first rollout of an attempt, which
follows the first weight sync to fresh servers, and every step after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from grpoflow.checkpoints import RunCheckpoint, newest_checkpoint, set_aside_incomplete
from grpoflow.files import Follower, read_json, write_json
from grpoflow.gates import (
    Finding,
    judge_agreement,
    judge_completions,
    judge_history,
    judge_lengths,
    judge_rewards,
    reward_groups,
)
from grpoflow.metrics import LogFollower, read_steps

from .run import Launch, RunDirectory

OF_THE_SYNC = {
    *("completions", "empty completions", "one symbol", "repetition", "broken text", "thinking"),
    "agreement",
}
"""What a resumed run is stopped for too. That all rewards are equal, or no completion ends, may be where the
run had got to; a checkpoint of it would only be trained on."""
HISTORY = 1000
"""Steps that are looked back on: more than any window of the gates, at a price that does not grow."""


@dataclass
class Quality:
    """What one attempt produces, as its files show it. `look` is called again and again."""

    run: RunDirectory
    launch: Launch
    attempt: str
    resume_step: int
    from_start: bool = False
    """Read what a former attempt left, and not only what is new."""
    judged: bool = False
    """The first rollout was looked at, and the attempt goes on."""
    sound_step: int = field(init=False)
    """The last step of which nothing speaks against the checkpoints up to it."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    active: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Alarms that hold now, by gate."""
    table: Mapping[str, Any] | None = None
    """The first rollout, as completions.jsonl has it."""
    log: LogFollower = field(init=False)
    completions: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.sound_step = self.resume_step
        self.steps = [step for step in read_steps(self.run.log) if step["step"] <= self.resume_step]
        self.log = LogFollower(self.run.log, from_start=self.from_start)
        self.completions = Follower(self.run.completions, from_start=self.from_start)

    def look(self, *, last: bool = False) -> list[Finding]:
        """Read what is new and judge it; return what the attempt must not go on with. `last`: the trainer has
        ended, nothing more will be written."""
        new = self.log.read()
        if not self.judged and self.table is None and self.launch.config.trainer.log_completions:
            self.table = next(map(_table, self.completions.read()), None)
        if not self.judged:
            self.steps += new
            own = [step for step in self.steps if step["step"] > self.resume_step]
            expected = self.table is not None or not self.launch.config.trainer.log_completions
            # swift rlhf writes the completions after the line of the log
            if not own or not (expected or last or len(own) > 1):
                return []
            step = int(own[0]["step"])
            found = self._first_rollout(own[0])
            self.judged = not _stops(found)
            if self.judged:
                write_json(self.run.first_rollout, {"attempt": self.attempt, "step": step})
        elif new:
            self.steps = [*self.steps, *new][-HISTORY:]
            step = int(self.steps[-1]["step"])
            found = self._weakened(
                judge_history(self.steps, self.launch.config.trainer.max_completion_length)
            )
        else:
            return []
        self._tell(found, step)
        if not (stops := _stops(found)):
            self.sound_step = int(self.steps[-1]["step"])
        return stops

    def _first_rollout(self, record: Mapping[str, Any]) -> list[Finding]:
        config = self.launch.config
        found = [
            *judge_lengths(record, config.trainer.max_completion_length),
            *judge_agreement(record),
        ]
        if self.table:
            texts = [text for text in self.table["completion"] if isinstance(text, str)]
            found += judge_completions(texts, self.launch.response_prefix)
            weights = list(config.rewards.weight_of().values())
            if groups := reward_groups(self.table, record, weights):
                found += judge_rewards(groups)
        if self.resume_step:
            found = [item if item.gate in OF_THE_SYNC else replace(item, level="alarm") for item in found]
        return self._weakened(found)

    def _weakened(self, found: Sequence[Finding]) -> list[Finding]:
        if self.launch.config.trainer.quality_gate == "stop":
            return list(found)
        return [replace(item, level="alarm") for item in found]

    def _tell(self, found: Sequence[Finding], step: int) -> None:
        """Write down the alarms: one entry from the step at which a gate raised it to the last one that it
        held for."""
        entries = read_json(self.run.alarms) if self.run.alarms.is_file() else []
        others = [entry for entry in entries if entry not in self.active.values()]
        holding = {}
        for item in found:
            begun = self.active.get(item.gate, {"attempt": self.attempt, "step": step})
            holding[item.gate] = {
                **{name: begun[name] for name in ("attempt", "step")},
                "last_step": step,
                **asdict(item),
                "causes": list(item.causes),
            }
        over = [entry for gate, entry in self.active.items() if gate not in holding]
        if found or self.active:
            write_json(self.run.alarms, [*others, *over, *holding.values()])
        self.active = holding


def _table(line: bytes) -> Mapping[str, Any]:
    """A line of completions.jsonl; empty where it is none, which must not end a run."""
    try:
        found = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and {"prompt", "completion"} <= found.keys() else {}


def _stops(found: Sequence[Finding]) -> list[Finding]:
    return [item for item in found if item.level == "stop"]


def refusal(found: Sequence[Finding]) -> str:
    """Why an attempt is ended, with the way on for those who know better."""
    lines = [f"  {item}" for item in found]
    return "\n".join(
        [
            "what the training produces is not fit to be trained on:",
            *lines,
            "  to go on in spite of it: trainer.quality_gate: warn",
        ]
    )


def refuse(run: RunDirectory, sound_step: int) -> None:
    """Write down that what was saved after this step is not to be used. It is moved aside when nobody writes
    to it any more, by `set_aside_refused`."""
    write_json(run.refused, {"sound_step": sound_step})


def set_aside_refused(run: RunDirectory) -> None:
    """Move aside what was refused; the supervisor that refused it may have died before it did."""
    if not run.refused.is_file():
        return
    step = read_json(run.refused)["sound_step"]
    set_aside_incomplete(run.output, newest_checkpoint(run.output, step))
    run.refused.unlink(missing_ok=True)


def accepted_checkpoint(run: RunDirectory) -> RunCheckpoint | None:
    """The newest complete checkpoint; none before a first rollout of the run was found to be sound."""
    return newest_checkpoint(run.output) if run.first_rollout.is_file() else None


def judge_what_was_left(run: RunDirectory, launch: Launch, attempt: str) -> None:
    """Judge the first rollout of an attempt whose supervisor died before it did."""
    if not run.first_rollout.is_file():
        Quality(run, launch, attempt, 0, from_start=True).look(last=True)
