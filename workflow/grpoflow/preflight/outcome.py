"""What is made of a trained model: benchmarks, and the export of an adapter."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path

from grpoflow.commands.benchmark import mapping_of
from grpoflow.plan.inference import inference_of

from .rules import Finding, rule
from .subject import Subject

INDEX = "lib/python3*/site-packages/evalscope/benchmarks/_index.json"


@rule(evidence="swift pipelines/eval/eval.py:4-6")
def benchmarks_have_evalscope(subject: Subject) -> Iterator[Finding]:
    """Protects from `swift eval` that ends at import, after the training: ms-swift does not install
    EvalScope."""
    benchmarks, packages = subject.config.evaluate.benchmarks, subject.packages
    if benchmarks and packages and "evalscope" not in packages:
        why = f"evalscope is not installed in {subject.config.cluster.environment}"
        legal = ("pip install evalscope there", "evaluate.benchmarks: null")
        yield Finding("evaluate.benchmarks.datasets", benchmarks.datasets, why, legal)


@rule(evidence="swift arguments/eval_args.py:99-111")
def benchmark_is_known(subject: Subject) -> Iterator[Finding]:
    """Protects from a misspelt data set, which ms-swift refuses after the training."""
    benchmarks = subject.config.evaluate.benchmarks
    known = known_benchmarks(subject.config.cluster.environment)
    if benchmarks is None or not known:
        return
    for name in benchmarks.datasets:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known)
            why = f"EvalScope {subject.packages.get('evalscope', '')} has no such data set"
            yield Finding("evaluate.benchmarks.datasets", name, why, (*near, "general_qa", "general_mcq"))


def known_benchmarks(environment: str) -> set[str]:
    """Names of EvalScope's data sets, read from its index; empty where it has none."""
    for path in Path(environment).glob(INDEX):
        try:
            return {str(name).lower() for name in json.loads(path.read_text(encoding="utf-8"))}
        except (OSError, ValueError):
            return set()
    return set()


@rule(evidence="swift pipelines/eval/eval.py:25, run_deploy")
def benchmarks_fit_one_node(subject: Subject) -> Iterator[Finding]:
    """Protects from a server of the benchmarks that finds fewer GPUs than it splits the model over, after the
    training."""
    config, found = subject.config, inference_of(subject.config)
    if config.evaluate.benchmarks and found.nodes > 1:
        why = (
            f"`swift eval` serves the model from one node of {config.cluster.gpus_per_node} GPUs, and "
            f"rollout.tensor_parallel_size is {config.rollout.tensor_parallel_size}"
        )
        legal = ("evaluate.benchmarks: null",)
        yield Finding("evaluate.benchmarks.datasets", config.evaluate.benchmarks.datasets, why, legal)


@rule(evidence="evalscope 1.14.1 config.py, TaskConfig.use_cache")
def benchmarks_start_anew(subject: Subject) -> Iterator[Finding]:
    """Protects from answers of another model among the results."""
    benchmarks = subject.config.evaluate.benchmarks
    given = mapping_of(benchmarks.args.get("extra_eval_args")) if benchmarks else {}
    if given.get("use_cache"):
        why = "takes the answers of an earlier run, and both models would have the same ones"
        key = "evaluate.benchmarks.args.extra_eval_args.use_cache"
        yield Finding(key, given["use_cache"], why, ("leave it out",))


@rule(evidence="mcore-bridge 1.6.5 bridge/gpt_bridge.py:1073-1078", needs="architecture")
def adapter_of_experts_is_merged(subject: Subject) -> Iterator[Finding]:
    """Protects from an adapter that nothing loads: Megatron adapts each expert, transformers has the experts
    of a layer as one tensor."""
    config, architecture = subject.config, subject.architecture
    if config.export.lora != "adapter" or config.trainer.backend != "megatron" or architecture is None:
        return
    if architecture.moe:
        why = (
            "Megatron-SWIFT trains an adapter of every expert, which PEFT cannot put onto the experts of "
            "transformers"
        )
        yield Finding("export.lora", "adapter", why, ("merged", "trainer.backend: swift"))
