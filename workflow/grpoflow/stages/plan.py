"""The plan of an experiment as plain data: batch, layout, placement, memory, cost, and every command line.

Ports count from `cluster.first_port`: the real block follows from the job id. Hosts are `node0`, `node1`, ...
of the allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpoflow.commands.base import Command
from grpoflow.commands.benchmark import benchmark
from grpoflow.commands.cache import cache_grpo_dataset, cache_sft_dataset
from grpoflow.commands.common import known_model
from grpoflow.commands.convert import to_hf, to_mcore
from grpoflow.commands.distributed import Ranks, ranks_of_nodes
from grpoflow.commands.environment import clean_environment
from grpoflow.commands.infer import infer
from grpoflow.commands.rollout import rollout
from grpoflow.commands.sft import sft
from grpoflow.commands.train import Server, TrainPaths, train
from grpoflow.config import Config
from grpoflow.config.identity import dataset_id, mcore_id, run_hash, sft_data_id, sft_id
from grpoflow.config.tuner import Parallel
from grpoflow.launch.run import RESULTS
from grpoflow.plan.auto import Choice
from grpoflow.plan.conversion import conversion_of, converts_back
from grpoflow.plan.inference import inference_of
from grpoflow.plan.inputs import as_parallel, placement_of, sft_ranks_per_node
from grpoflow.plan.layout import LayoutSpec
from grpoflow.plan.memory import NOT_MODELLED, RankMemory
from grpoflow.plan.placement import Placement
from grpoflow.plan.throughput import DEFAULT_ASSUMPTIONS, gpu_hours
from grpoflow.preflight.estimate import (
    batch_of,
    disk,
    rollout_memory,
    run_steps,
    sft_ranks,
    sft_time,
    step_time,
    trainer_ranks,
)
from grpoflow.preflight.report import Report
from grpoflow.preflight.subject import Layout, Subject

from .dataset import CONVERSATIONS
from .needs import gpus_of, mem_mb_of

ALTERNATIVES = 10


def plan_document(subject: Subject, report: Report) -> dict[str, Any]:
    """Everything that is known about an experiment before it runs.

    Raises:
        PlanError, ValueError: there is no plan, because a check that refuses was switched off.
    """
    config = _with_model_type(subject.config)
    placement = placement_of(config)
    return {
        "experiment": subject.experiment,
        "run": run_hash(config),
        **report.to_json(),
        "batch": _batch(subject),
        "layout": _layouts(subject),
        "placement": {**asdict(placement), "sync_client_node": placement.sync_client_node},
        "memory": _memory(subject),
        "cost": _cost(subject, placement),
        "stages": [stage.to_json() for stage in _stages(subject, config, placement)],
    }


def _with_model_type(config: Config) -> Config:
    """Checkpoints that stages will write have the model type of the one that is there."""
    model_type, template = known_model(Path(config.model.path))
    model = config.model.model_copy(
        update={
            "model_type": config.model.model_type or model_type,
            "template": config.model.template or template,
        }
    )
    return config.model_copy(update={"model": model})


# --- batch and layout ---


def _batch(subject: Subject) -> dict[str, Any] | None:
    batch = batch_of(subject)
    if batch is None:
        return None
    return {**asdict(batch), "train_steps": run_steps(subject)}


def _layouts(subject: Subject) -> dict[str, Any]:
    config = subject.config
    found = {
        "trainer": _layout(
            config.trainer.backend, config.trainer.deepspeed, subject.layout, subject.world_size
        )
    }
    if config.sft is not None:
        found["sft"] = _layout(
            config.sft.backend, config.sft.deepspeed, subject.sft_layout, subject.sft_world_size
        )
    return found


def _layout(backend: str, deepspeed: str, layout: Layout, world_size: int) -> dict[str, Any]:
    if backend == "swift":
        return {"backend": backend, "world_size": world_size, "dp_size": world_size, "deepspeed": deepspeed}
    spec = layout.spec
    if spec is None:
        return {
            "backend": backend,
            "world_size": world_size,
            "why": "auto is resolved once config.json is there",
        }
    return {
        "backend": backend,
        **asdict(spec),
        "dp_size": spec.dp_size,
        "edp_size": spec.edp_size,
        "chosen": "auto" if layout.choice else "one rank" if world_size == 1 else "given",
        **(_choice(layout.choice) if layout.choice else {}),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "reason": choice.reason,
        "alternatives": [
            {
                "layout": str(candidate.layout),
                "peak_bytes": candidate.peak,
                "step_seconds": round(candidate.step_seconds, 1),
                "fits": candidate.fits,
            }
            for candidate in choice.ranked[1 : 1 + ALTERNATIVES]
        ],
    }


# --- memory and cost ---


def _memory(subject: Subject) -> dict[str, Any] | None:
    """Bytes per rank of every role; None without architecture or GPU."""
    gpu, engine = subject.gpu, rollout_memory(subject)
    if gpu is None or engine is None:
        return None
    colocated = subject.config.rollout.mode == "colocate"
    return {
        "gpu": {"name": gpu.name, "bytes": gpu.memory},
        "trainer": [_rank(rank) for rank in trainer_ranks(subject)],
        "rollout": {
            **({} if colocated else _rank(engine.rank)),
            "kv_tokens": engine.kv_tokens,
            "concurrency": round(engine.concurrency, 2),
            "largest_max_num_seqs": engine.max_num_seqs,
        },
        "sft": [_rank(rank) for rank in sft_ranks(subject)],
        "not_modelled": list(NOT_MODELLED),
    }


def _rank(rank: RankMemory) -> dict[str, Any]:
    return {
        "role": rank.role,
        "peak_bytes": rank.peak,
        "peak_phase": rank.peak_phase,
        "host_bytes": rank.host,
        "items": [asdict(item) for item in rank.items],
    }


def _cost(subject: Subject, placement: Placement) -> dict[str, Any]:
    """Seconds, GPU-hours per stage and in total, and disk. A stage without an estimate says why."""
    step, steps = step_time(subject), run_steps(subject)
    per_stage: dict[str, dict[str, Any]] = {}
    warm_up = sft_time(subject)
    if warm_up is not None:
        hours = None if warm_up.steps is None else warm_up.steps * warm_up.step_seconds * warm_up.gpus / 3600
        per_stage["sft"] = {
            "gpus": warm_up.gpus,
            "steps": warm_up.steps,
            "step_seconds": round(warm_up.step_seconds, 2),
            "gpu_hours": _rounded(hours),
        }
    gpus = len(placement.nodes) * placement.gpus_per_node  # what the job holds, used or not
    per_stage["train_grpo"] = {
        "gpus": gpus,
        "steps": steps,
        "step_seconds": step and round(step.step_seconds, 2),
        "gpu_hours": _rounded(gpu_hours(step, steps, gpus) if step and steps else None),
    }
    known = [stage["gpu_hours"] for stage in per_stage.values()]
    return {
        "stages": per_stage,
        "gpu_hours": None if None in known else round(sum(known), 1),
        "phases": [
            {"name": phase.name, "seconds": round(phase.seconds, 2), "assumption": phase.assumption}
            for phase in (step.phases if step else ())
        ],
        "steps_per_cycle": step and step.updates,
        "assumptions": asdict(DEFAULT_ASSUMPTIONS),
        "not_estimated": "conversion, evaluation and export: minutes, which depend on the data and the disk",
        "disk": _disk(subject),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _disk(subject: Subject) -> dict[str, Any] | None:
    storage = disk(subject)
    if storage is None:
        return None
    return {f"{name}_bytes": size for name, size in asdict(storage).items()}


# --- stages ---


@dataclass(frozen=True)
class PlannedCommand:
    """One program on one node of its stage."""

    name: str
    node: int
    argv: tuple[str, ...]
    env: dict[str, str]


@dataclass(frozen=True)
class PlannedStage:
    """One rule: its resources and its programs; the first program is the one that the stage is named for."""

    name: str
    config: Config
    nodes: int = 1
    commands: tuple[PlannedCommand, ...] = ()

    def to_json(self) -> dict[str, Any]:
        main = self.commands[0] if self.commands else None
        gpus = gpus_of(self.name, self.config)
        return {
            "name": self.name,
            "nodes": self.nodes,
            "gpus_per_node": gpus,
            "host_memory_mib": mem_mb_of(self.name, self.config) if gpus else None,
            "argv": list(main.argv) if main else [],
            "env": main.env if main else {},
            "commands": [{**asdict(command), "argv": list(command.argv)} for command in self.commands],
        }


def _stages(subject: Subject, config: Config, placement: Placement) -> list[PlannedStage]:
    """Every stage in the order of the DAG."""
    shared, results = RESULTS / "shared", RESULTS / subject.experiment
    dataset = shared / "dataset" / dataset_id(config)
    start = shared / "sft" / sft_id(config) / "model" if config.sft else Path(config.model.path)
    megatron = config.trainer.backend == "megatron"
    mcore = shared / "mcore" / mcore_id(config) / "checkpoint" if megatron else None
    stages = [PlannedStage("preflight", config)]
    frozen = [cache_grpo_dataset(config, dataset / "train.jsonl", dataset / "grpo")]
    commands = _commands(config, ("export-grpo", frozen if config.data.grpo_cached else []))
    stages.append(PlannedStage("cache_dataset", config, 1, commands))
    if config.sft is not None:
        conversations = shared / "sft_data" / sft_data_id(config)
        cache = [cache_sft_dataset(config, conversations / "sft.jsonl", conversations / "sft")]
        stages.append(PlannedStage("cache_sft", config, 1, _commands(config, ("export-sft", cache))))
        stages.append(_sft_stage(subject, config, conversations / CONVERSATIONS, start))
    if mcore is not None:
        stages.append(
            _conversion_stage(
                config,
                "convert_to_mcore",
                lambda ranks, parallel: [
                    to_mcore(config, start, mcore, ranks, parallel),
                    to_hf(config, mcore, start, mcore.parent / "back", ranks, parallel),
                ],
            )
        )
    stages += _rl_stages(subject, config, placement, dataset, start, mcore, results)
    model = results / "model"
    prompts = dataset / "val.jsonl"
    answers = results / "evaluation"
    found = inference_of(config)
    ask = [
        _planned(
            config,
            "infer",
            ranks.node_rank,
            infer(config, model, prompts, answers / f"{kind}.jsonl", greedy=kind == "greedy", ranks=ranks),
        )
        for kind in ("greedy", "sampled")
        for ranks in _ranks_of_job(config, found.nproc_per_node, found.nodes)
    ]
    stages.append(PlannedStage("evaluate", config, found.nodes, tuple(ask)))
    if config.evaluate.benchmarks is not None:
        copies, port = found.copies, config.cluster.first_port
        asked = benchmark(config, config.evaluate.benchmarks, model, results / "benchmarks", port, copies)
        stages.append(PlannedStage("benchmarks", config, 1, _commands(config, ("eval", [asked]))))
    trained, back = results / "checkpoint", results / "export" / "converted"
    if converts_back(config):
        stages.append(
            _conversion_stage(
                config,
                "export_hf",
                lambda ranks, parallel: [to_hf(config, trained, start, back, ranks, parallel)],
            )
        )
    else:  # the GPUs compare logits alone
        stages.append(PlannedStage("export_hf", config))
    return [*stages, PlannedStage("report", config)]


def _commands(config: Config, named: tuple[str, Sequence[Command]]) -> tuple[PlannedCommand, ...]:
    name, commands = named
    return tuple(_planned(config, name, 0, command) for command in commands)


def _planned(config: Config, name: str, node: int, command: Command, **env: str) -> PlannedCommand:
    base = clean_environment(config, {})
    return PlannedCommand(name, node, command.argv, {**base, **command.env, **env})


def _conversion_stage(
    config: Config, name: str, commands: Callable[[Ranks, Parallel | None], list[Command]]
) -> PlannedStage:
    """`megatron export`, on as many ranks as it takes to hold the weights."""
    found, program = conversion_of(config), name.partition("_")[0]
    planned = [
        _planned(config, program, ranks.node_rank, command)
        for ranks in _ranks_of_job(config, found.nproc_per_node, found.nodes)
        for command in commands(ranks, found.parallel)
    ]
    return PlannedStage(name, config, found.nodes, tuple(planned))


def _ranks_of_job(config: Config, nproc_per_node: int, nodes: int) -> list[Ranks]:
    if nodes == 1:
        return ranks_of_nodes(nproc_per_node, nodes, 29500)
    return ranks_of_nodes(nproc_per_node, nodes, config.cluster.first_port, "node0")


def _sft_stage(subject: Subject, config: Config, cached: Path, start: Path) -> PlannedStage:
    nodes, per_node = config.sft.nodes if config.sft else 1, sft_ranks_per_node(config)
    parallel = _parallel(subject.sft_layout.spec)
    run = start.parent / "run"
    commands = [
        _planned(config, f"sft{ranks.node_rank}", ranks.node_rank, sft(config, cached, run, ranks, parallel))
        for ranks in _ranks_of_job(config, per_node, nodes)
    ]
    return PlannedStage("sft", config, nodes, tuple(commands))


def _parallel(spec: LayoutSpec | None) -> Parallel:
    return as_parallel(spec) if spec is not None else Parallel()


def _rl_stages(
    subject: Subject,
    config: Config,
    placement: Placement,
    dataset: Path,
    start: Path,
    mcore: Path | None,
    results: Path,
) -> list[PlannedStage]:
    """The two views of the one RL job: servers, and trainer."""
    base, cuda = config.cluster.first_port, config.cluster.device == "cuda"

    def devices(gpus: tuple[int, ...]) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if cuda else {}

    servers, serving = [], []
    for node, role in placement.rollout_servers:
        port = base + role.http_port_offset
        servers.append(Server(f"node{node}", port, base + role.group_port_offset))
        serving.append(
            _planned(config, role.name, node, rollout(config, start, port, role.dp), **devices(role.gpus))
        )
    paths = TrainPaths(start, mcore, dataset / "train.jsonl", results / "runs" / run_hash(config) / "output")
    training = []
    for node, trainer in placement.trainers:
        ranks = Ranks(
            trainer.nproc_per_node,
            len(placement.trainers),
            trainer.node_rank,
            f"node{placement.master_node}",
            base + placement.master_port_offset,
        )
        command = train(config, paths, ranks, _parallel(subject.layout.spec), servers)
        training.append(_planned(config, trainer.name, node, command, **devices(trainer.gpus)))
    stages = []
    if serving:
        stages.append(PlannedStage("rollout_server", config, len(placement.nodes), tuple(serving)))
    return [*stages, PlannedStage("train_grpo", config, len(placement.nodes), tuple(training))]
