"""`swift eval` with EvalScope alone: `python -m grpoflow.training_env.swift_eval ARGUMENTS`.

ms-swift 4.6.0 asks every backend of EvalScope for its data sets before it uses one of them
(swift/arguments/eval_args.py:81-97). For that of OpenCompass it needs ms-opencompass, which requires numpy
below 2 and so cannot be installed beside a vLLM of today: `swift eval` ends with "No module named
'opencompass'".
"""

from __future__ import annotations

import sys

from evalscope.api.registry import BENCHMARK_REGISTRY
from evalscope.constants import EvalBackend
from swift.arguments import EvalArguments
from swift.pipelines import eval_main


def native_datasets(eval_backend: str | None = None) -> dict[str, list[str]]:
    """The data sets of EvalScope's own backend, in place of EvalArguments.list_eval_dataset."""
    return {eval_backend or EvalBackend.NATIVE: sorted(BENCHMARK_REGISTRY.keys())}


if __name__ == "__main__":
    EvalArguments.list_eval_dataset = staticmethod(native_datasets)
    eval_main(sys.argv[1:])
