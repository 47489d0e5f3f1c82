"""The files of the workflow: which result each experiment needs, and where it lies.

Results that several experiments can share (data set, SFT checkpoint, conversion) are keyed by the identity of
what they depend on, so that a sweep makes each of them once. Rules use the methods as input functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from grpoflow.config import Config, load_experiments
from grpoflow.config.base import keys_of_kind
from grpoflow.config.identity import dataset_id, mcore_id, run_hash, sft_data_id, sft_id
from grpoflow.launch.run import RESULTS
from grpoflow.plan.conversion import conversion_of, converts_back
from grpoflow.plan.inference import inference_of
from grpoflow.preflight.probed import probe_id, probe_path

from .needs import cpus_of, gres_of, mem_mb_of

LOGS = Path("logs")
MANIFEST = "manifest.json"
EXPERIMENT_RESULTS = (
    "plan.json",
    "train.json",
    f"evaluation/{MANIFEST}",
    f"export/{MANIFEST}",
    "report.html",
)


class Wildcards(Protocol):
    """What Snakemake hands to input functions."""

    def __getattr__(self, name: str) -> str: ...


class Dag:
    """The validated configuration of all experiments, and the paths that follow from it.

    Raises:
        ConfigError: the configuration is refused; holds every problem of every experiment.
    """

    def __init__(self, raw: Mapping[str, Any]):
        self.experiments = load_experiments(raw)

    def config(self, wildcards: Wildcards) -> Config:
        """Find the configuration that a rule's wildcards stand for. Experiments that share a result agree in
        every key that it depends on; the demo files depend on none."""
        experiment = getattr(wildcards, "experiment", None)
        if experiment is not None:
            return self.experiments[experiment]
        for name, identity in IDENTITIES.items():
            wanted = getattr(wildcards, name, None)
            if wanted is not None:
                return next(c for c in self.experiments.values() if _of(identity, c) == wanted)
        return next(iter(self.experiments.values()))

    @property
    def wide_rules(self) -> set[str]:
        """The rules for which an experiment needs several nodes, if it has them: they run as drivers."""
        configs = self.experiments.values()
        found = set()
        if any(config.sft is not None and config.sft.nodes > 1 for config in configs):
            found.add("sft")
        if converted := [config for config in configs if conversion_of(config).nodes > 1]:
            found.add("convert_to_mcore")
            if any(converts_back(config) for config in converted):
                found.add("export_hf")
        if any(inference_of(config).nodes > 1 for config in configs):
            found.add("evaluate")
        if any(config.cluster.probe for config in configs):
            found.add("probe_nodes")
        return found

    def asks_for(self, rule: str) -> dict[str, Callable[[Wildcards], Any]]:
        """Resources of a rule's jobs where nobody says more."""

        def mem_mb(wildcards: Wildcards) -> int:
            return mem_mb_of(rule, self.config(wildcards))

        def gres(wildcards: Wildcards) -> str:
            return gres_of(rule, self.config(wildcards))

        def cpus(wildcards: Wildcards) -> int:
            return cpus_of(rule, self.config(wildcards))

        return {"mem_mb": mem_mb, "gres": gres, "cpus_per_task": cpus}

    def targets(self, _: Wildcards) -> list[str]:
        """Every result of every stage. Snakemake does not miss a file that only a finished rule needs: with
        the last results alone, a removed manifest would not be made again."""
        found: list[str] = []
        for name, config in self.experiments.items():
            if path := probe_path(config):
                found.append(str(path))
            found.append(_shared("dataset", dataset_id(config)))
            if config.sft:
                found.append(_shared("sft_data", sft_data_id(config)))
                found.append(_shared("sft", sft_id(config)))
            if config.trainer.backend == "megatron":
                found.append(_shared("mcore", mcore_id(config)))
            if config.rollout.mode == "server":
                found.append(str(RESULTS / name / "endpoints.json"))
            if config.evaluate.benchmarks:
                found.append(_benchmarks(name))
            found += [str(RESULTS / name / result) for result in EXPERIMENT_RESULTS]
        return list(dict.fromkeys(found))

    def probe(self, wildcards: Wildcards) -> list[str]:
        """What is known of the nodes, where they are to be probed."""
        path = probe_path(self.config(wildcards))
        return [str(path)] if path else []

    def base_model(self, wildcards: Wildcards) -> str:
        return str(Path(self.config(wildcards).model.path) / "config.json")

    def data_files(self, wildcards: Wildcards) -> list[str]:
        data = self.config(wildcards).data
        return [data.train, data.val]

    def sft_files(self, wildcards: Wildcards) -> list[str]:
        """The conversations, and the held-out prompts that must not be among them."""
        config = self.config(wildcards)
        return [config.data.val, *([config.sft.dataset] if config.sft else [])]

    def reward_plugin(self, wildcards: Wildcards) -> list[str]:
        plugin = self.config(wildcards).rewards.plugin
        return [plugin] if plugin else []

    def dataset(self, wildcards: Wildcards) -> str:
        return _shared("dataset", dataset_id(self.config(wildcards)))

    def sft_data(self, wildcards: Wildcards) -> str:
        return _shared("sft_data", sft_data_id(self.config(wildcards)))

    def start(self, wildcards: Wildcards) -> str:
        """The checkpoint that GRPO starts from: the one of the sft stage, or the configured one."""
        config = self.config(wildcards)
        return _shared("sft", sft_id(config)) if config.sft else self.base_model(wildcards)

    def mcore(self, wildcards: Wildcards) -> str | list[str]:
        """The converted checkpoint; the swift backend reads Hugging Face directories and needs none."""
        config = self.config(wildcards)
        return _shared("mcore", mcore_id(config)) if config.trainer.backend == "megatron" else []

    def endpoints(self, wildcards: Wildcards) -> str | list[str]:
        """The rollout servers; in colocate mode there are none."""
        if self.config(wildcards).rollout.mode != "server":
            return []
        return str(RESULTS / wildcards.experiment / "endpoints.json")

    def benchmarks(self, wildcards: Wildcards) -> str | list[str]:
        """Results of the public benchmarks, where there are any."""
        return _benchmarks(wildcards.experiment) if self.config(wildcards).evaluate.benchmarks else []

    def run_hash(self, wildcards: Wildcards) -> str:
        return run_hash(self.config(wildcards))

    def evaluate_keys(self, wildcards: Wildcards) -> dict[str, Any]:
        """The benchmarks are not among them: a stage of their own reads those."""
        config = self.config(wildcards)
        keys = keys_of_kind(config.evaluate, "convergence", later_defaults=False)
        return {name: value for name, value in keys.items() if name != "benchmarks"} | _evaluated(config)

    def benchmark_keys(self, wildcards: Wildcards) -> dict[str, Any]:
        config = self.config(wildcards)
        benchmarks = config.evaluate.benchmarks
        keys = benchmarks.model_dump() if benchmarks else {}
        return {"engine": config.evaluate.engine} | keys | _evaluated(config)

    def export_keys(self, wildcards: Wildcards) -> dict[str, Any]:
        return keys_of_kind(self.config(wildcards).export, "convergence", later_defaults=False)


def share_resources(overwritten: dict[str, Any], *rules: str) -> None:
    """Give each of the rules the resources that `--set-resources` or the profile set for the others."""
    given = [overwritten[rule] for rule in rules if rule in overwritten]
    together = {name: value for resources in given for name, value in resources.items()}
    for rule in rules if given else ():
        # the mapping is of Snakemake's own type, whose values it takes in no other mapping
        overwritten[rule] = type(given[0])({**together, **overwritten.get(rule, {})})


def _evaluated(config: Config) -> dict[str, Any]:
    """Which checkpoint is evaluated: the one that is exported, with its numbers on the card."""
    export = config.export
    return {} if export.checkpoint == "last" else {"export": [export.checkpoint, export.metric]}


def _benchmarks(experiment: str) -> str:
    return str(RESULTS / experiment / "benchmarks" / MANIFEST)


def _shared(stage: str, identity: str) -> str:
    return str(RESULTS / "shared" / stage / identity / MANIFEST)


def _of(identity: Callable[[Config], str | None], config: Config) -> str | None:
    return None if identity in (sft_data_id, sft_id) and config.sft is None else identity(config)


IDENTITIES: dict[str, Callable[[Config], str | None]] = {
    "dataset": dataset_id,
    "sft_data": sft_data_id,
    "sft": sft_id,
    "mcore": mcore_id,
    "probe": probe_id,
}
