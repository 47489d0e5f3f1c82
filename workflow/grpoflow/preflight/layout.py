"""Parallel layouts and the placement of roles on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpoflow.commands.tuning import MARKS_VOCABULARY
from grpoflow.config.base import as_read
from grpoflow.plan.inputs import placement_spec
from grpoflow.plan.layout import check_layout, check_vllm_tp, check_world_size
from grpoflow.plan.placement import check_placement
from grpoflow.plan.problem import divisors, nearest

from .from_plan import finding
from .memory import helps
from .rules import Finding, rule, rules
from .subject import Layout, Subject

CORE = "megatron/core/transformer/transformer_config.py"

PLACEMENT_RULES = {
    "valid_trainer_gpus": ("GPUs that the node does not have", "nccl#1241"),
    "colocate_vllm_tp_divides_world": (
        "vLLM groups that do not make up the trainer's ranks",
        "swift megatron/trainers/rollout_mixin.py:413-416",
    ),
    "server_fits_its_gpus": (
        "a rollout server larger than its node: it has no pipeline parallelism and cannot span nodes",
        "swift arguments/deploy_args.py:131-152, ms-swift#9344",
    ),
    "server_uses_its_gpus": ("GPUs that are held and idle", "arithmetic"),
}


@rules(PLACEMENT_RULES)
def placement(subject: Subject) -> Iterator[Finding]:
    """Where the roles go."""
    spec = placement_spec(subject.config)
    for problem in check_placement(spec):
        if spec.mode == "split" and problem.id.startswith("valid_"):
            continue  # shared_node_has_room says it in the keys of the configuration
        found, arch = finding(problem, subject, "trainer"), subject.architecture
        if problem.key == "vllm_tp" and arch is not None:
            # of the sizes that fit the GPUs, those over which the heads of this model split
            gpus = spec.trainer_world_size if spec.mode == "colocate" else len(spec.rollout_device_ids)
            sizes = [size for size in divisors(gpus) if not check_vllm_tp(arch, size)]
            found = replace(found, legal=nearest(spec.vllm_tp, sizes))
        yield found


@rule(evidence="arithmetic")
def shared_node_has_room(subject: Subject) -> Iterator[Finding]:
    """Protects from a server that leaves the trainer no GPU of the shared node."""
    rollout, cluster, trainer = subject.config.rollout, subject.config.cluster, subject.config.trainer
    if rollout.mode != "server" or rollout.nodes or rollout.gpus is None:
        return
    trained = trainer.gpus or 1
    if rollout.gpus + trained > cluster.gpus_per_node:
        why = f"with {trained} for the trainer is more than the {cluster.gpus_per_node} GPUs of the node"
        legal = tuple(range(cluster.gpus_per_node - trained, 0, -1))[:3]
        yield Finding("rollout.gpus", rollout.gpus, why, legal)


@rule(evidence="swift megatron/trainers/rollout_mixin.py:494-519 (external_launcher)", level="warn")
def engine_within_node(subject: Subject) -> Iterator[Finding]:
    """Protects from relying on something nobody has tried: a colocated vLLM engine over several nodes."""
    rollout, gpus = subject.config.rollout, subject.config.cluster.gpus_per_node
    if rollout.mode == "colocate" and rollout.tensor_parallel_size > gpus:
        why = f"more than the {gpus} GPUs of a node: ms-swift accepts it, but no run of it is known"
        yield Finding("rollout.tensor_parallel_size", rollout.tensor_parallel_size, why, (gpus,))


LAYOUT_RULES = {
    "tp_divides_num_attention_heads": ("attention heads that do not split over the ranks", CORE),
    "tp_divides_linear_num_key_heads": (
        "GDN key heads that do not split over the ranks",
        f"{CORE}, Megatron-LM#3883",
    ),
    "tp_divides_linear_num_value_heads": (
        "GDN value heads that do not split over the ranks",
        f"{CORE}, Megatron-LM#3883",
    ),
    "tp_divides_intermediate_size": ("MLP matrices that do not split over the ranks", CORE),
    "tp_divides_shared_expert_intermediate_size": ("shared experts that do not split over the ranks", CORE),
    "tp_fits_kv_heads": (
        "KV heads that can neither be split nor copied evenly",
        f"{CORE} (num_query_groups)",
    ),
    "moe_needs_sequence_parallel": (
        "a ValueError of the MoE layer in training",
        "megatron/core/transformer/moe/moe_layer.py:620",
    ),
    "cp_needs_megatron_core": (
        "'Gated delta net does not support context parallel'",
        "Megatron-LM#3883, mcore-bridge 1.6.5 mcore_bridge/model/modules/gated_delta_net.py:274",
    ),
    "tp_cp_divide_gdn_heads": ("GDN heads that do not split over TP x CP ranks", "Megatron-LM#3883"),
    "uneven_stages_need_pp": (
        "stage sizes without a pipeline",
        "swift megatron/arguments/megatron_args.py:885",
    ),
    "layers_fill_the_stages": ("layers left over after the given stages", "ms-swift#6476"),
    "pp_divides_layers": (
        "layers that do not split over the pipeline",
        "megatron/core/transformer/transformer_block.py",
    ),
    "dense_has_no_experts": (
        "an expert split of a dense model, which ms-swift silently drops",
        "swift megatron/model/utils.py:67",
    ),
    "ep_divides_experts": (
        "experts that do not split over the ranks",
        "megatron/core/transformer/moe/moe_layer.py:185",
    ),
    "etp_divides_expert_width": ("expert matrices that do not split over the ranks", CORE),
    "ep1_needs_etp_equal_tp": (
        "experts whose copies drift apart, because their gradients are not summed over the TP ranks",
        "megatron/core/extensions/transformer_engine.py (TEGroupedLinear, allreduce), "
        "megatron/core/distributed/distributed_data_parallel.py",
    ),
    "tp_within_node": ("tensor parallelism over the network between nodes", "arXiv 1909.08053"),
    "auto_layout_is_legal": ("a batch for which no layout exists", "arithmetic"),
    "auto_layout_fits": ("a model that fits in no layout of these GPUs", "arithmetic"),
}


@rules(LAYOUT_RULES, needs="architecture")
def layouts(subject: Subject) -> Iterator[Finding]:
    """The layouts of the GRPO and of the SFT trainer."""
    config = subject.config
    if config.trainer.backend == "megatron":
        yield from _layout(subject, subject.layout, "trainer")
    if config.sft is not None and config.sft.backend == "megatron":
        yield from _layout(subject, subject.sft_layout, "sft")


def _layout(subject: Subject, layout: Layout, section: str) -> Iterator[Finding]:
    if layout.problem is not None:
        for problem in layout.problem.problems:
            if problem.id != "gpu_is_known":
                found = finding(problem, subject, section)
                legal = helps(subject, section) if problem.id == "auto_layout_fits" else ()
                yield Finding(f"{section}.parallel", "auto", found.why, legal, found.level, found.rule)
    arch = subject.architecture
    if layout.spec is None or arch is None:
        return
    gpus = subject.config.cluster.gpus_per_node
    for problem in check_layout(arch, layout.spec, gpus_per_node=gpus, megatron_core=subject.megatron_core):
        # checked without the architecture too: megatron_batch and sft_world_size_fits_layout
        if not problem.id.startswith("world_size_fits"):
            yield finding(problem, subject, section)


@rule(evidence="megatron/core/parallel_state.py:740,792")
def sft_world_size_fits_layout(subject: Subject) -> Iterator[Finding]:
    """Protects from SFT ranks that do not make up whole replicas of the model."""
    sft, spec = subject.config.sft, subject.sft_layout.spec
    if sft is not None and sft.backend == "megatron" and spec is not None:
        for problem in check_world_size(spec):
            yield finding(problem, subject, "sft", rule="sft_world_size_fits_layout")


@rule(
    evidence="megatron-core 0.17.1 megatron/core/tensor_parallel/layers.py (VocabParallelEmbedding, "
    "ColumnParallelLinear), megatron/core/optimizer/optimizer.py (get_main_grads_for_grad_norm)"
)
def vocabulary_counts_in_grad_norm(subject: Subject) -> Iterator[Finding]:
    """Protects from a grad_norm, and a clipping, that leave out the vocabulary of all TP ranks but
    the first."""
    config = subject.config
    for name, tuner, spec in (
        ("trainer", config.trainer, subject.layout.spec),
        ("sft", config.sft, subject.sft_layout.spec),
    ):
        if tuner is None or spec is None or spec.tp == 1 or subject.megatron_core >= MARKS_VOCABULARY:
            continue
        if as_read(tuner.args).get("perform_initialization", True) in (False, 0):
            version = ".".join(map(str, subject.megatron_core))
            why = (
                f"megatron-core {version} marks embedding and output layer as split over TP {spec.tp} only "
                "where it initialises them; without the mark their gradients count on the first TP rank alone"
            )
            legal = ("leave it out", True)
            yield Finding(f"{name}.args.perform_initialization", False, why, legal)


@rules(
    {
        "vllm_tp_divides_heads": (
            "heads that vLLM cannot split over its ranks",
            "vllm model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:521,653",
        )
    },
    needs="architecture",
)
def vllm_heads(subject: Subject) -> Iterator[Finding]:
    """The tensor-parallel size of vLLM."""
    if subject.architecture is not None:
        for problem in check_vllm_tp(subject.architecture, subject.config.rollout.tensor_parallel_size):
            yield finding(problem, subject, "trainer")


@rule(evidence="swift rlhf of ms-swift 4.6.0 has no tensor_model_parallel_size", level="warn")
def swift_backend_ignores_layout(subject: Subject) -> Iterator[Finding]:
    """Protects from a parallel layout that only Megatron reads."""
    for name, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        if tuner is not None and tuner.backend == "swift" and tuner.parallel != "auto":
            why = "the swift backend has no tensor, pipeline or expert parallelism; use deepspeed: zero3"
            given = {axis: size for axis, size in tuner.parallel.model_dump().items() if size > 1}
            yield Finding(f"{name}.parallel", given, why, ("auto",))
