"""`swift eval` with EvalScope alone, and a new one: `python -m grpoflow.training_env.swift_eval ARGUMENTS`.

ms-swift 4.6.0 asks every backend of EvalScope for its data sets before it uses one of them
(swift/arguments/eval_args.py:81-97). For that of OpenCompass it needs ms-opencompass, which requires numpy
below 2 and so cannot be installed beside a vLLM of today: `swift eval` ends with "No module named
'opencompass'". And it uses a name that EvalScope 1.14.1 no longer has (swift/pipelines/eval/eval.py:96):
"type object 'EvalType' has no attribute 'SERVICE'".
"""

from __future__ import annotations

import sys

from evalscope.api.registry import BENCHMARK_REGISTRY
from evalscope.constants import EvalBackend, EvalType
from swift.arguments import EvalArguments
from swift.pipelines import eval_main


def native_datasets(eval_backend: str | None = None) -> dict[str, list[str]]:
    """The data sets of EvalScope's own backend, in place of EvalArguments.list_eval_dataset."""
    return {eval_backend or EvalBackend.NATIVE: sorted(BENCHMARK_REGISTRY.keys())}


if __name__ == "__main__":
    EvalArguments.list_eval_dataset = staticmethod(native_datasets)
    if not hasattr(EvalType, "SERVICE"):
        EvalType.SERVICE = EvalType.OPENAI_API
    eval_main(sys.argv[1:])
