"""What a release of ms-swift, and the packages around it, do with what the configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator

from grpoflow.config.base import as_read
from grpoflow.facts.gates import PackageBound, features, gated_arguments, package_bounds, status
from grpoflow.facts.versions import VersionError, parse_release

from .passthrough import usable
from .report import Level
from .rules import Finding, rule, rules
from .subject import Subject

FLOOR = "4.4.0"
OLDEST, NEWEST = "4.0.0", "4.6.0"
"""Releases that were examined, facts/version_gates.json."""

# without these a GPU run cannot start, or falls back to something many times slower without a word
REQUIRED = ("torch", "transformers", "vllm", "msgspec", "fla-core", "qwen-vl-utils")
REQUIRED_BY = {
    "megatron": ("megatron-core", "mcore-bridge", "transformer-engine"),
    "swift": ("trl", "peft"),
    "sm80": ("flash-attn",),  # the fused attention of Transformer Engine stops at head_dim 128 there
}
NEEDED_FOR = {
    "torch": "every program",
    "transformers": "every program",
    "vllm": "generation",
    "msgspec": "imported by GRPO, though ms-swift does not ask for it",
    "fla-core": "gated delta nets: Megatron-core needs it, transformers is many times slower without",
    "qwen-vl-utils": "the Qwen3.5 loader of ms-swift",
    "megatron-core": "backend: megatron",
    "mcore-bridge": "backend: megatron",
    "transformer-engine": "backend: megatron",
    "trl": "backend: swift",
    "peft": "backend: swift",
    "flash-attn": "attention with head_dim 256 on sm80",
}


@rule(evidence="ms-swift#9060, ms-swift#8493, ms-swift#9519, ms-swift#9531")
def ms_swift_is_recent_enough(subject: Subject) -> Iterator[Finding]:
    """Protects from releases whose rollout server or weight sync corrupts Qwen3.5 without an error."""
    version = subject.config.cluster.ms_swift
    try:
        release = parse_release(version)
    except VersionError as error:
        yield Finding("cluster.ms_swift", version, str(error), ("4.6.0",))
        return
    if release < parse_release(FLOOR):
        why = (
            f"Qwen3.5 GRPO needs {FLOOR}: before, weight syncs to vLLM 0.17 and later are faulty (fixed in "
            "4.1.0 and 4.4.0), servers of a mixture of experts answer garbled text (4.3.0), a trainer on "
            "several nodes sends stale weights (4.1.1) and leaves the non-thinking prefix out of its "
            "log-probabilities (4.3.0)"
        )
        yield Finding("cluster.ms_swift", version, why, ("4.6.0",))


@rule(evidence="facts/version_gates.json: every released wheel 4.0.0 to 4.6.0 was compared", level="warn")
def ms_swift_release_was_examined(subject: Subject) -> Iterator[Finding]:
    """Protects from rules that are older than the release."""
    version = subject.config.cluster.ms_swift
    if _is_known(version) and status(features()[0], version).assumed:
        why = "newer than every release that was examined; the rules of the last one are applied"
        yield Finding("cluster.ms_swift", version, why, ("4.6.0",))


@rule(evidence="dist-info of the training environment")
def installed_ms_swift_is_the_configured_one(subject: Subject) -> Iterator[Finding]:
    """Protects from arguments and rules that are checked against another release than the one that runs."""
    version, installed = subject.config.cluster.ms_swift, subject.packages.get("ms-swift")
    if installed is not None and installed != version:
        why = (
            f"{subject.config.cluster.environment} holds ms-swift {installed}: arguments and rules would be "
            "those of another release"
        )
        yield Finding("cluster.ms_swift", version, why, (installed,))


@rule(evidence="ms-swift#9571, transformers 5.9")
def packing_has_its_transformers(subject: Subject) -> Iterator[Finding]:
    """Protects from packed sequences that the GatedDeltaNet of an older transformers runs together."""
    installed = subject.packages.get("transformers")
    if installed is None or parse_release(installed) >= parse_release("5.9"):
        return
    for name, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        for argument in ("packing", "padding_free"):
            if tuner is not None and tuner.backend == "swift" and as_read(tuner.args).get(argument):
                why = (
                    f"with Qwen3.5 the swift backend needs transformers 5.9 for it; {installed} is installed"
                )
                yield Finding(f"{name}.args.{argument}", True, why, (False,))


@rule(evidence="facts/package_bounds.json")
def installed_packages_fit(subject: Subject) -> Iterator[Finding]:
    """Protects from packages outside of the window in which this release of ms-swift works."""
    cluster, packages = subject.config.cluster, subject.packages
    if not packages:
        return
    try:
        bounds = package_bounds(cluster.ms_swift)
    except VersionError:
        return  # a release without data
    for bound in bounds:
        installed = packages.get(bound.package)
        if installed is not None and not bound.allows(installed):
            why = f"{bound.package} {installed}: ms-swift {cluster.ms_swift} needs {_wanted(bound)}"
            legal = (
                bound.package + (f"=={bound.recommended}" if bound.recommended else f" {_wanted(bound)}"),
            )
            yield Finding("cluster.environment", cluster.environment, why, legal, evidence=bound.evidence)


def _wanted(bound: PackageBound) -> str:
    found = " and ".join(filter(None, (bound.requires, bound.qwen3_5))) or "any release"
    return f"{found} ({bound.note})" if bound.note else found


@rule(evidence="facts/package_bounds.json, TransformerEngine#1821, ms-swift#7210", level="warn")
def needed_packages_are_installed(subject: Subject) -> Iterator[Finding]:
    """Protects from a package that is missed only when the GPUs are held, or replaced by slow code."""
    cluster, gpu, packages = subject.config.cluster, subject.gpu, subject.packages
    if not packages or cluster.device != "cuda":
        return
    needed = REQUIRED + REQUIRED_BY[subject.config.trainer.backend]
    if gpu is not None and gpu.compute_capability < (9, 0):
        needed += REQUIRED_BY["sm80"]
    missing = [name for name in needed if name not in packages]
    if missing:
        why = f"its site-packages lack {', '.join(f'{name} ({NEEDED_FOR[name]})' for name in missing)}"
        yield Finding("cluster.environment", cluster.environment, why, (f"with {', '.join(missing)}",))


# --- features ---

LEARNS_SOMETHING_ELSE = ("reward_model", "reward_model_plugin", "grpo_teacher_model")
"""Ignored without a word, and the run then learns from other rewards than the person asked for."""

WITHOUT_ARGUMENT = (
    "mcore_gated_delta_net",
    "server_weight_post_processing",
    "multi_node_server_weight_sync",
    "non_thinking_prefix_in_trainer",
    "last_checkpoint_symlink",
    "grpo_resume_skips_right_prompts",
    "grpo_loss_not_divided_by_microbatches",
    "beta_zero_saves_reference_memory",
)
ONLY_WARNED_OF = WITHOUT_ARGUMENT[-3:]
"""Wasteful, or wrong after a resume only."""

SCALED_LOSSES = ("bnpo", "dapo", "cispo")


def _gates() -> dict[str, str]:
    """Features that some release refuses, ignores or gets wrong, with what happens then."""
    found = {}
    for name in features():
        states = [status(name, release) for release in (NEWEST, OLDEST)]
        faulty = [state for state in states if state.status != "supported"]
        if faulty and (faulty[0].arguments or name in WITHOUT_ARGUMENT):
            found[name] = f"{faulty[0].status}: {faulty[0].why}"
    return found


@rules({name: (protects, "facts/version_gates.json") for name, protects in _gates().items()})
def version_gates(subject: Subject) -> Iterator[Finding]:
    """Features by name, as the configured release treats them."""
    config, version = subject.config, subject.config.cluster.ms_swift
    if not _is_known(version):
        return
    trainer, rollout = config.trainer, config.rollout
    given = {
        "steps_per_generation": trainer.steps_per_generation,
        "save_total_limit": trainer.save_total_limit,
        **trainer.args,
    }
    sections = [(f"{trainer.backend} rlhf", "trainer.args", given)]
    if rollout.mode == "server":
        sections.append(("swift rollout", "rollout.args", rollout.args))
    if config.sft is not None:
        sections.append((f"{config.sft.backend} sft", "sft.args", config.sft.args))
    for command, key, args in sections:
        for state in gated_arguments(command, usable(as_read(args)), version):
            name = next(
                (a for a in state.arguments if key == "rollout.args" or a in trainer.args), state.arguments[0]
            )
            why = f"`{command}` of ms-swift {version}: {state.status}: {state.why}"
            ignored = state.status == "ignored" and state.feature not in LEARNS_SOMETHING_ELSE
            newer = status(state.feature, NEWEST).status == "supported"
            yield Finding(
                f"{key}.{name}",
                args.get(name),
                why,
                ("leave it out", *([f"cluster.ms_swift: {NEWEST}"] if newer else [])),
                "warn" if ignored else "refuse",
                state.feature,
                state.evidence,
            )
    for name in WITHOUT_ARGUMENT:
        state = status(name, version)
        if state.status == "supported" or not _concerns(name, subject):
            continue
        level: Level = "warn" if name in ONLY_WARNED_OF else "refuse"
        why = f"{state.status}: {state.why}"
        if name == "beta_zero_saves_reference_memory":
            # in every release, so that no other one helps
            legal = ("tuner: lora, which needs no copy",)
            yield Finding("trainer.beta", trainer.beta, why, legal, level, name, state.evidence)
            continue
        if name == "last_checkpoint_symlink":
            why += "; the workflow takes a run for complete only by it"
        yield Finding("cluster.ms_swift", version, why, ("4.6.0",), level, name, state.evidence)


def _concerns(feature: str, subject: Subject) -> bool:
    """Whether a feature that no argument asks for matters to this configuration."""
    config = subject.config
    trainer, server = config.trainer, config.rollout.mode == "server"
    megatron = trainer.backend == "megatron"
    return {
        "mcore_gated_delta_net": megatron,
        "server_weight_post_processing": server,
        "multi_node_server_weight_sync": megatron and server and trainer.nodes > 1,
        "non_thinking_prefix_in_trainer": server and not config.model.enable_thinking,
        "last_checkpoint_symlink": True,
        "grpo_resume_skips_right_prompts": megatron and trainer.save_optimizer,
        "grpo_loss_not_divided_by_microbatches": megatron and trainer.loss_type in SCALED_LOSSES,
        "beta_zero_saves_reference_memory": megatron and trainer.tuner == "full" and trainer.beta == 0,
    }[feature]


def _is_known(version: str) -> bool:
    """Whether the data files say anything about a release."""
    try:
        status(features()[0], version)
    except VersionError:
        return False
    return True
