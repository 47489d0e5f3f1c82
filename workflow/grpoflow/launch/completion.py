"""Whether a training is complete: proven from its checkpoint and its log, never from an exit code alone."""

from __future__ import annotations

from pathlib import Path

from grpoflow.checkpoints import RunCheckpoint, newest_checkpoint
from grpoflow.config import Config
from grpoflow.metrics import read_steps


class TrainingIncomplete(Exception):
    """The training has not reached its last step, or learned nothing. The message says what was found."""


def verify_training(config: Config, output: Path) -> RunCheckpoint:
    """Return the final checkpoint of a complete training.

    Raises:
        TrainingIncomplete: steps are missing, the last checkpoint is not complete, or a silent failure is in
            the log (grad_norm 0 or completions of length 0 at every step).
    """
    steps = read_steps(output / "logging.jsonl")
    if not steps:
        raise TrainingIncomplete(f"{output / 'logging.jsonl'} holds no training step")
    last = steps[-1]
    wanted = config.trainer.train_steps or last["max_steps"]
    newest = newest_checkpoint(output)
    # The log proves no last step: with logging_steps above 1 neither backend logs it unless it is a multiple
    # (swift megatron/callbacks/default_flow.py:21, transformers trainer_callback.py:572).
    if newest is None or newest.step != wanted:
        found = f"checkpoint-{newest.step}" if newest else "none"
        raise TrainingIncomplete(
            f"the last complete checkpoint is {found}, not checkpoint-{wanted}; the last step in the log is "
            f"{last['step']}"
        )
    if all(step.get("grad_norm") == 0 for step in steps):
        raise TrainingIncomplete("grad_norm is 0 at every step: nothing was trained")
    if all(step.get("completions/mean_length") == 0 for step in steps):
        raise TrainingIncomplete("completions/mean_length is 0 at every step: the completions were lost")
    return newest


def is_complete(config: Config, output: Path) -> bool:
    try:
        verify_training(config, output)
    except TrainingIncomplete:
        return False
    return True
