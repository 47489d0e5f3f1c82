"""Arguments that are passed through: known to the release, of the right type, and not modelled elsewhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from grpoflow.config.base import as_read
from grpoflow.facts.arguments import Catalogue, CatalogueError, load_catalogue
from grpoflow.facts.engine import engine_arguments
from grpoflow.facts.versions import VersionError

from .generated import generated_commands
from .modelled import WORKFLOW, modelled_key
from .passthrough import passthrough, usable
from .report import Level
from .rules import Finding, rule, rules
from .subject import Subject

CATALOGUE = "argument catalogue read from the released wheel"
TYPE_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "one text",
    "json": "a mapping",
    "unsettable": "leave it out",
}


def catalogue_of(subject: Subject) -> Catalogue | None:
    """The argument catalogue of the configured release, or None where there is none."""
    try:
        return load_catalogue(subject.config.cluster.ms_swift)
    except (CatalogueError, VersionError):
        return None  # ms_swift_is_recent_enough refuses such a release


@rules(
    {
        "argument_exists": (
            "a misspelt argument: ms-swift refuses it after minutes of start-up",
            "ms-swift#4868, ms-swift#9928",
        ),
        "argument_was_renamed": ("an argument of ms-swift 3.x", CATALOGUE),
        "argument_has_a_legal_value": ("a value that ms-swift cannot parse or does not know", CATALOGUE),
    }
)
def arguments_are_known(subject: Subject) -> Iterator[Finding]:
    """Names, types and choices against the catalogue of the release."""
    catalogue = catalogue_of(subject)
    if catalogue is None:
        return
    for given in passthrough(subject.config):
        rest = {
            name: value for name, value in usable(given.args).items() if not modelled_key(name, given.section)
        }
        for problem in catalogue.check(given.command, rest):
            id = {"unknown": "argument_exists", "renamed": "argument_was_renamed"}.get(
                problem.kind, "argument_has_a_legal_value"
            )
            message = problem.message.removeprefix(f"{problem.argument}: ")
            why = message if f"`{given.command}`" in message else f"`{given.command}`: {message}"
            level: Level = "refuse" if problem.severity == "error" else "warn"
            key, value = f"{given.section}.args.{problem.argument}", given.args[problem.argument]
            legal: tuple[object, ...] = problem.legal or ("leave it out",)
            if id == "argument_has_a_legal_value" and not problem.legal:
                kind = catalogue.arguments(given.command)[problem.argument].type
                legal = (TYPE_WORDS.get(kind, kind),)
            yield Finding(key, value, why, legal, level, id, problem.evidence)


@rule(evidence="workflow/grpoflow/commands")
def argument_is_not_modelled(subject: Subject) -> Iterator[Finding]:
    """Protects from a value given twice: the plan would be made for one of them, and the other one run."""
    for given in passthrough(subject.config):
        for name, value in given.args.items():
            key = modelled_key(name, given.section)
            if key == WORKFLOW:
                why = "the workflow sets it: it follows from the stage, the placement or the run directory"
                yield Finding(f"{given.section}.args.{name}", value, why, ("leave it out",))
            elif key:
                why = f"give it as {key}, which the plan and the checks read"
                yield Finding(f"{given.section}.args.{name}", value, why, (key,))


@rule(evidence="swift cli/main.py:66")
def argument_is_not_null(subject: Subject) -> Iterator[Finding]:
    """Protects from a null, which reaches ms-swift as the text 'None'."""
    for given in passthrough(subject.config):
        for name in given.args.keys() - usable(given.args).keys():
            yield Finding(
                f"{given.section}.args.{name}",
                given.args[name],
                "null has no form on a command line",
                ("leave it out",),
            )


@rule(evidence="ms-swift#9928")
def unknown_arguments_are_refused(subject: Subject) -> Iterator[Finding]:
    """Protects from a misspelt argument that ms-swift swallows."""
    for given in passthrough(subject.config):
        if as_read(given.args).get("ignore_args_error"):
            why = "with it a misspelt argument is dropped without a word"
            yield Finding(f"{given.section}.args.ignore_args_error", True, why, ("leave it out",))


@rule(evidence="swift arguments/deploy_args.py", level="warn")
def rollout_args_are_used(subject: Subject) -> Iterator[Finding]:
    """Protects from arguments of a server that does not exist."""
    rollout = subject.config.rollout
    if rollout.mode == "colocate" and rollout.args:
        why = "in colocate mode there is no `swift rollout`; give vllm_* arguments in trainer.args"
        yield Finding("rollout.args", dict(rollout.args), why, ({},))


@rule(evidence="swift arguments/rlhf_args.py:704", level="warn")
def engine_args_reach_the_engine(subject: Subject) -> Iterator[Finding]:
    """Protects from engine settings that the trainer ignores because a server has the engine."""
    if subject.config.rollout.mode != "server":
        return
    for name, value in subject.config.trainer.args.items():
        if name.startswith("vllm_") and not name.startswith("vllm_server") and name != "vllm_enable_lora":
            why = "ignored for an external vLLM server; give it in rollout.args"
            yield Finding(f"trainer.args.{name}", value, why, (f"rollout.args.{name}",))


SET_FOR_VLLM = {
    "model": "model.path",
    "dtype": "model.torch_dtype",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "tensor_parallel_size": "rollout.tensor_parallel_size",
    "max_num_seqs": "rollout.max_num_seqs",
    "enforce_eager": "rollout.enforce_eager",
    "limit_mm_per_prompt": "rollout.limit_images",
    "max_model_len": "rollout.args.vllm_max_model_len",
    "data_parallel_size": "leave it out",
    "disable_custom_all_reduce": "leave it out",
    "disable_log_stats": "leave it out",
    "distributed_executor_backend": "leave it out",
    "pipeline_parallel_size": "leave it out",
    "trust_remote_code": "leave it out",
    "worker_extension_cls": "leave it out",
}
"""What ms-swift gives the engine by itself, and the key that says it."""


@rule(evidence="ms-swift 4.6.0 swift/infer_engine/vllm_engine.py:356-373, pipelines/infer/rollout.py:853-862")
def engine_args_are_not_set_twice(subject: Subject) -> Iterator[Finding]:
    """Protects from a server that ends with 'got multiple values for keyword argument', and from a value that
    is replaced without a word."""
    rollout = subject.config.rollout
    for name, value in rollout.engine_args.items():
        if name in SET_FOR_VLLM:
            why = "ms-swift passes it to the engine by itself, and not this one"
            yield Finding(f"rollout.engine_args.{name}", value, why, (SET_FOR_VLLM[name],))
        elif name == "enable_prefix_caching" and rollout.mode == "colocate":
            why = "in colocate mode ms-swift replaces it by vllm_enable_prefix_caching of the trainer"
            legal = (f"trainer.args.vllm_enable_prefix_caching: {str(value).lower()}",)
            yield Finding(f"rollout.engine_args.{name}", value, why, legal)


@rule(evidence="vLLM 0.23.0 vllm/engine/arg_utils.py")
def engine_args_exist(subject: Subject) -> Iterator[Finding]:
    """Protects from a server that ends with 'got an unexpected keyword argument' after it was loaded."""
    config = subject.config
    known = engine_arguments(config.cluster.environment)
    for name, value in config.rollout.engine_args.items():
        if known and name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=2, cutoff=0.6)
            why = "the vLLM of cluster.environment has no such engine argument"
            yield Finding(f"rollout.engine_args.{name}", value, why, tuple(near) or ("leave it out",))


PRECISIONS = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


@rules(
    {
        "optimizer_can_be_narrow": (
            "an AssertionError: '... can only be fp32 when not using precision-aware optimizer'",
            "megatron/core/optimizer/optimizer_config.py:411-425",
        ),
        "offload_fraction_is_a_share": (
            "a share of the optimizer below nothing or above all of it",
            "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py",
        ),
    }
)
def optimizer_arguments(subject: Subject) -> Iterator[Finding]:
    """Arguments of Megatron's optimizer."""
    for section, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        if tuner is None or tuner.backend != "megatron":
            continue
        args = as_read(tuner.args)
        aware = args.get("use_precision_aware_optimizer", tuner.optimizer_cpu_offload)
        for name in PRECISIONS:
            if not aware and args.get(name, "fp32") != "fp32":
                legal = ("fp32", f"{section}.args.use_precision_aware_optimizer: true")
                why = "only the precision-aware optimizer of Megatron keeps less than fp32"
                yield Finding(
                    f"{section}.args.{name}", args[name], why, legal, rule="optimizer_can_be_narrow"
                )
        share = args.get("optimizer_offload_fraction", 1.0)
        if isinstance(share, int | float) and not 0 <= share <= 1:
            why = "the share of the optimizer that is kept in host memory, from 0 to 1"
            key = f"{section}.args.optimizer_offload_fraction"
            yield Finding(key, share, why, (1.0,), rule="offload_fraction_is_a_share")


# --- what the commands pass by themselves ---


@rule(evidence=CATALOGUE)
def release_has_what_the_workflow_passes(subject: Subject) -> Iterator[Finding]:
    """Protects from a release that lacks an argument which the workflow itself needs."""
    config, catalogue = subject.config, catalogue_of(subject)
    if catalogue is None:
        return
    passed_through = {name for given in passthrough(config) for name in given.args}
    for command in generated_commands(config).values():
        program = f"{Path(command.argv[0]).name} {command.argv[1]}"
        problems = catalogue.check_argv(program, command.argv[2:])
        names = [p.argument for p in problems if p.argument not in passed_through and p.severity == "error"]
        if names:
            why = f"`{program}` of ms-swift {config.cluster.ms_swift} does not accept --{', --'.join(names)}"
            yield Finding("cluster.ms_swift", config.cluster.ms_swift, why, ("4.6.0",))


# --- arguments that exclude each other ---


@rules(
    {
        "packing_needs_tokenised_rows": (
            "packing with lazy_tokenize: 'Packing and lazy_tokenize are incompatible'",
            "swift arguments/base_args/data_args.py",
        ),
        "group_by_length_needs_lengths": (
            "group_by_length with padding_free (the default of Megatron-SWIFT) or lazy_tokenize",
            "swift megatron/arguments/megatron_args.py:852, ms-swift#8470",
        ),
        "streaming_has_no_cache": (
            "a cached data set that is streamed",
            "swift arguments/base_args/data_args.py",
        ),
        "streaming_needs_steps": (
            "streamed data without a number of steps",
            "swift megatron/arguments/megatron_args.py:1153-1165",
        ),
        "recompute_arguments_agree": (
            "recompute_method with selective recomputation: a ValueError",
            "swift megatron/arguments/megatron_args.py:849-850",
        ),
        "soft_overlong_has_a_length": (
            "the soft_overlong reward without soft_cache_length",
            "swift megatron/arguments/megatron_args.py:453-455",
        ),
    }
)
def arguments_agree(subject: Subject) -> Iterator[Finding]:
    """Pairs of arguments that ms-swift refuses together."""
    config = subject.config
    for name, tuner in (("trainer", config.trainer), ("sft", config.sft)):
        if tuner is None:
            continue
        args = as_read(tuner.args)
        prefix = f"{name}.args"
        lazy, megatron = args.get("lazy_tokenize"), tuner.backend == "megatron"
        if args.get("packing") and lazy:
            yield Finding(
                f"{prefix}.packing",
                True,
                f"with {prefix}.lazy_tokenize ms-swift stops: rows must be tokenised before they are packed",
                (False,),
                rule="packing_needs_tokenised_rows",
            )
        if args.get("group_by_length") and (lazy or (megatron and args.get("padding_free", True))):
            other = (
                "lazy_tokenize"
                if lazy
                else f"padding_free, which is on unless {prefix}.padding_free is false"
            )
            yield Finding(
                f"{prefix}.group_by_length",
                True,
                f"ms-swift stops with {other}",
                (False,),
                rule="group_by_length_needs_lengths",
            )
        if args.get("streaming"):
            if args.get("cached_dataset") or name == "sft":
                why = "a cached data set cannot be streamed"
                yield Finding(f"{prefix}.streaming", True, why, (False,), rule="streaming_has_no_cache")
            if tuner.train_steps is None:
                why = "the length of streamed data is not known: give train_steps"
                yield Finding(
                    f"{name}.epochs", tuner.epochs, why, ("train_steps: 100",), rule="streaming_needs_steps"
                )
        if tuner.recompute != "full":
            for key in ("recompute_method", "recompute_num_layers"):
                if megatron and args.get(key) is not None:
                    why = f"only with recompute: full, not {tuner.recompute}"
                    yield Finding(
                        f"{prefix}.{key}", args[key], why, ("leave it out",), rule="recompute_arguments_agree"
                    )
    if "soft_overlong" in config.rewards.functions and config.trainer.args.get("soft_cache_length") is None:
        why = (
            "the reward soft_overlong takes points off in the last so many tokens; ms-swift stops without it"
        )
        legal = (config.trainer.max_completion_length // 5,)
        yield Finding("trainer.args.soft_cache_length", None, why, legal, rule="soft_overlong_has_a_length")


TEMPLATE_ARGUMENTS = (
    "add_non_thinking_prefix", "agent_template", "enable_thinking", "preserve_thinking", "response_prefix",
    "template_backend", "use_chat_template",
)  # fmt: skip


@rule(evidence="swift template/base.py:132-133, arguments/base_args/base_args.py:300-331")
def template_is_the_same_everywhere(subject: Subject) -> Iterator[Finding]:
    """Protects from a server and a trainer with different templates: they train on other tokens than were
    generated, without any error."""
    config = subject.config
    if config.rollout.mode != "server":
        return
    trainer, rollout = config.trainer.args, config.rollout.args
    for name in TEMPLATE_ARGUMENTS:
        if as_read(trainer).get(name) != as_read(rollout).get(name):
            why = f"trainer.args says {trainer.get(name)!r}: server and trainer must render the same tokens"
            yield Finding(f"rollout.args.{name}", rollout.get(name), why, (trainer.get(name),))


@rule(evidence="ms-swift#9554", level="warn")
def offload_is_of_use(subject: Subject) -> Iterator[Finding]:
    """Protects from an illegal memory access seen with CPU offload of a LoRA optimizer."""
    for name, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        if tuner is not None and tuner.optimizer_cpu_offload and tuner.tuner == "lora":
            why = "a LoRA optimizer is small, and its offload ended in illegal memory accesses on a MoE model"
            yield Finding(f"{name}.optimizer_cpu_offload", True, why, (False,))
        elif tuner is not None and tuner.optimizer_cpu_offload and tuner.backend == "swift":
            why = "only Megatron reads it; give a DeepSpeed file with offload in args.deepspeed"
            yield Finding(f"{name}.optimizer_cpu_offload", True, why, (False,))
