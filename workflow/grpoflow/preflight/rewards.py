"""The reward functions, tried on real rows in the training environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpoflow.commands.rewards import reward_request

from .dataset import PACKAGE_ROOT, read_dataset
from .rules import Finding, rules
from .subject import Subject

REWARD_SECONDS = 120
ROWS = 3
COMPLETIONS = ("", "no answer", "<think>\n\n</think>\n\n<answer>1</answer>", "\\boxed{1}")
RULE_OF_FAULT = {
    "plugin": "reward_plugin_loads",
    "registered": "reward_is_registered",
    "signature": "reward_signature_fits_the_columns",
    "exception": "reward_raises_nothing",
    "length": "reward_per_completion",
    "type": "reward_is_a_number",
    "none": "reward_is_not_always_none",
    "slow": "reward_answers_in_time",
}
EVIDENCE = "ms-swift 4.6.0 swift/rl_core/grpo_algorithm.py:50-80"


@rules(
    {
        "reward_plugin_loads": ("a plugin that cannot be imported", "ms-swift#4351"),
        "reward_is_registered": (
            "a reward function that nobody registered in swift.rewards.orms",
            "ms-swift#4351",
        ),
        "reward_signature_fits_the_columns": (
            "a reward function whose columns the data do not have",
            "ms-swift#7069",
        ),
        "reward_raises_nothing": ("an exception that ends the training at its first step", EVIDENCE),
        "reward_per_completion": (
            "a list of another length: one of length 1 is given to every completion",
            "trl#6533",
        ),
        "reward_is_a_number": ("a reward that no tensor can hold", EVIDENCE),
        "reward_is_not_always_none": ("groups without any reward", "ms-swift#8123"),
        "reward_answers_in_time": ("a reward function that hangs, with all GPUs waiting", "ms-swift#9228"),
        "reward_can_be_tried": ("a dry run that does not run", "the training environment"),
    },
    needs="data",
)
def reward_functions(subject: Subject) -> Iterator[Finding]:
    """One dry run for all functions."""
    config = subject.config
    python = Path(config.cluster.environment).absolute() / "bin/python"
    train = read_dataset(config.data.train)
    if not python.is_file() or not train.rows:
        return
    rewards = config.rewards
    with tempfile.TemporaryDirectory(prefix="grpoflow-") as directory:
        request, result = Path(directory) / "request.json", Path(directory) / "result.json"
        content = {
            **reward_request(config),
            "rows": train.rows[:ROWS],
            "completions": {text or "empty": text for text in COMPLETIONS},
            "result": str(result),
        }
        request.write_text(json.dumps(content), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, "-m", "grpoflow.training_env.try_rewards", request],
                capture_output=True,
                text=True,
                check=False,
                timeout=REWARD_SECONDS,
                env={**_environment(), "PYTHONPATH": os.fspath(PACKAGE_ROOT), "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired:
            why = f"no answer within {REWARD_SECONDS} s on {ROWS * len(COMPLETIONS)} completions"
            yield Finding("rewards.functions", rewards.functions, why, rule="reward_answers_in_time")
            return
        except OSError as error:
            yield Finding("cluster.environment", str(python), str(error), rule="reward_can_be_tried")
            return
        if not result.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            why = f"the dry run ended with code {done.returncode}: {last}"
            yield Finding("rewards.functions", rewards.functions, why, rule="reward_can_be_tried")
            return
        faults = json.loads(result.read_text(encoding="utf-8"))["faults"]
    for fault in faults:
        key = "rewards.plugin" if fault["fault"] == "plugin" else "rewards.functions"
        why = f"{fault['function']}: {fault['message']}"
        yield Finding(key, fault["function"], why, rule=RULE_OF_FAULT[fault["fault"]])


def _environment() -> dict[str, str]:
    return {
        name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ
    }
