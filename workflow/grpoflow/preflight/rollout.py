"""Generation: lengths, environment, GPU generation and what vLLM can do with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from grpoflow.config.base import as_read
from grpoflow.facts.versions import VersionError, meets
from grpoflow.plan.inputs import model_length

from .rules import Finding, rule
from .subject import NO_WORDS, YES_WORDS, Subject

LAUNCHER_VARIABLES = {
    "NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES", "VLLM_PORT",
}  # fmt: skip
KEY_OF_VARIABLE = {"MODELSCOPE_CACHE": "cluster.cache", "IMAGE_MAX_TOKEN_NUM": "data.image_max_tokens"}
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")
THINKING_TOKENS = 4096


@rule(evidence="ms-swift 4.6.0 swift/infer_engine/infer_engine.py:235-256", level="warn")
def completions_fit_the_window(subject: Subject) -> Iterator[Finding]:
    """Protects from completions that vLLM cuts short without a word, or prompts that it refuses."""
    config = subject.config
    section = "rollout" if config.rollout.mode == "server" else "trainer"
    prompt, completion, window = (
        config.data.max_length,
        config.trainer.max_completion_length,
        model_length(config),
    )
    key = f"{section}.args.vllm_max_model_len"
    if prompt >= window:
        why = f"a prompt of max_length {prompt} leaves no room for a completion"
        yield Finding(key, window, why, (prompt + completion,), "refuse")
    elif prompt + completion > window:
        why = (
            f"below max_length {prompt} + max_completion_length {completion}: after a long prompt "
            f"completions are cut at {window - prompt} tokens"
        )
        yield Finding(key, window, why, (prompt + completion,))


@rule(evidence="config.json: max_position_embeddings", needs="architecture")
def window_fits_the_model(subject: Subject) -> Iterator[Finding]:
    """Protects from positions that the model was never trained on, which vLLM refuses."""
    arch, window = subject.architecture, model_length(subject.config)
    if arch is not None and window > arch.max_position_embeddings:
        completion = subject.config.trainer.max_completion_length
        why = (
            f"with max_completion_length {completion} exceeds the {arch.max_position_embeddings} positions "
            "of the model"
        )
        legal = max(1, arch.max_position_embeddings - completion)
        yield Finding("data.max_length", subject.config.data.max_length, why, (legal,))


@rule(evidence="NeMo-RL#2725", level="warn")
def thinking_has_room(subject: Subject) -> Iterator[Finding]:
    """Protects from rewards near zero because every thought is cut before its answer."""
    config = subject.config
    if config.model.enable_thinking and config.trainer.max_completion_length < THINKING_TOKENS:
        why = f"thinking models need {THINKING_TOKENS} tokens and more before they answer"
        legal = (THINKING_TOKENS, 2 * THINKING_TOKENS)
        yield Finding("trainer.max_completion_length", config.trainer.max_completion_length, why, legal)


@rule(evidence="ms-swift#8398, ms-swift#2485, swift cli/main.py:71-80")
def environment_leaves_launching_alone(subject: Subject) -> Iterator[Finding]:
    """Protects from variables that start torchrun inside the rollout server, or send all nodes to one
    address."""
    for name, value in subject.config.cluster.env.items():
        if name in LAUNCHER_VARIABLES:
            why = "set for each program by the workflow, from the placement"
            yield Finding(f"cluster.env.{name}", value, why, ("leave it out",))
        elif name in KEY_OF_VARIABLE:
            yield Finding(
                f"cluster.env.{name}", value, f"give it as {KEY_OF_VARIABLE[name]}", (KEY_OF_VARIABLE[name],)
            )


@rule(evidence="mcore-bridge 1.6.5 mcore_bridge/model/mm_gpts/qwen3_5.py:122")
def transformers_gdn_is_not_split(subject: Subject) -> Iterator[Finding]:
    """Protects from USE_MCORE_GDN=0 with context parallelism, which that implementation lacks."""
    spec = subject.layout.spec
    value = subject.without_mcore_gdn
    if value is not None and spec is not None and spec.cp > 1:
        why = f"the transformers GatedDeltaNet has no context parallelism, and CP is {spec.cp}"
        yield Finding("cluster.env.USE_MCORE_GDN", value, why, ("1",))


@rule(evidence="mcore-bridge 1.6.5 mcore_bridge/utils/utils.py:47 (strtobool)")
def gdn_switch_is_a_word(subject: Subject) -> Iterator[Finding]:
    """Protects from a word that mcore-bridge cannot read: every Megatron program ends at import."""
    value = subject.config.cluster.env.get("USE_MCORE_GDN")
    if value is not None and value.lower() not in (*YES_WORDS, *NO_WORDS):
        yield Finding("cluster.env.USE_MCORE_GDN", value, "neither a word for yes nor for no", ("1", "0"))


@rule(evidence="ms-swift#8234, ms-swift#8363")
def cache_is_shared(subject: Subject) -> Iterator[Finding]:
    """Protects from a data-set cache that only one node sees: the others fail or hang."""
    config = subject.config
    nodes = max(config.trainer.nodes, config.sft.nodes if config.sft else 1)
    cache = config.cluster.cache
    if nodes > 1 and any(Path(cache).is_relative_to(place) for place in NODE_LOCAL):
        why = f"node-local, and the trainer has {nodes} nodes; it must be on the shared filesystem"
        yield Finding("cluster.cache", cache, why, (".cache",))


# --- GPU generation ---


@rule(evidence="NVIDIA A100 data sheet (no FP8), TransformerEngine#1821")
def gpu_can_do_it(subject: Subject) -> Iterator[Finding]:
    """Protects from FP8 and FlashAttention 3/4 on GPUs older than Hopper (A800, A100: sm80)."""
    gpu = subject.gpu
    if gpu is None or gpu.fp8:
        return
    for name, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        for argument, value in as_read(tuner.args if tuner else {}).items():
            key = f"{name}.args.{argument}"
            if argument.startswith(("fp8", "fp4")) and value not in (None, False):
                yield Finding(key, value, f"{gpu.name} has no FP8 tensor cores", ("leave it out",))
            elif argument in ("attention_backend", "attn_impl", "vit_attn_impl") and str(value).endswith(
                ("_3", "_4")
            ):
                why = f"{gpu.name} runs FlashAttention 2 only"
                yield Finding(
                    key, value, why, ("flash" if argument == "attention_backend" else "flash_attention_2",)
                )
    rollout = subject.config.rollout
    for section, args in (("args", rollout.args), ("engine_args", rollout.engine_args)):
        for argument, value in args.items():
            if "fp8" in str(value).lower():
                why = f"{gpu.name} has no FP8 tensor cores"
                yield Finding(f"rollout.{section}.{argument}", value, why, ("leave it out",))


@rule(evidence="NVIDIA A100 data sheet (no FP8), ms-swift#9178", needs="architecture")
def checkpoint_is_not_fp8(subject: Subject) -> Iterator[Finding]:
    """Protects from training an FP8 checkpoint on GPUs without FP8."""
    quantised = subject.hf_config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    if method is not None and subject.gpu is not None and not subject.gpu.fp8:
        why = f"{subject.gpu.name} has no FP8 tensor cores, and config.json says quantization_config {method}"
        yield Finding("model.path", subject.config.model.path, why, ("the bf16 checkpoint",))


# --- what vLLM and DeepSpeed can do ---


@rule(evidence="vllm#40005", needs="architecture")
def adapters_are_served(subject: Subject) -> Iterator[Finding]:
    """Protects from adapter-only weight sync to a mixture of experts, whose fused experts take no LoRA."""
    config, arch = subject.config, subject.architecture
    if arch is None or arch.moe is None or config.trainer.tuner != "lora":
        return
    if config.rollout.mode == "server":
        key, value = (
            "rollout.args.vllm_enable_lora",
            as_read(config.rollout.args).get("vllm_enable_lora", True),
        )
    else:
        key, value = (
            "trainer.args.vllm_enable_lora",
            as_read(config.trainer.args).get("vllm_enable_lora", False),
        )
    if value:
        why = "vLLM loads no LoRA of this mixture of experts; without it the merged weights are sent"
        yield Finding(key, value, why, (False,))


@rule(evidence="ms-swift#6884")
def quantised_weights_are_not_synced(subject: Subject) -> Iterator[Finding]:
    """Protects from a quantised base model whose weights vLLM cannot take over."""
    for name in ("quant_bits", "quant_method"):
        value = as_read(subject.config.trainer.args).get(name)
        if value:
            why = "vLLM gets full weights and cannot take them over into a quantised model"
            yield Finding(f"trainer.args.{name}", value, why, ("leave it out",))


@rule(evidence="ms-swift#5400, ms-swift#9719, ms-swift#8145", level="warn")
def deepspeed_with_experts(subject: Subject) -> Iterator[Finding]:
    """Protects from mixtures of experts under DeepSpeed: hangs, or steps of ten minutes."""
    if "moe" not in str(subject.hf_config.get("model_type")):
        return
    for name, tuner in (("trainer", subject.config.trainer), ("sft", subject.config.sft)):
        if tuner is not None and tuner.backend == "swift" and tuner.deepspeed != "none":
            why = "DeepSpeed is slow on a mixture of experts, and ranks without tokens for an expert can hang"
            yield Finding(f"{name}.backend", tuner.backend, why, ("megatron",))


@rule(evidence="ms-swift#9787")
def zero3_sync_is_right(subject: Subject) -> Iterator[Finding]:
    """Protects from wrong weights in the server after the first sync of a ZeRO-3 trainer on several nodes:
    completions become '!!!!'."""
    trainer = subject.config.trainer
    if trainer.backend != "swift" or trainer.deepspeed != "zero3" or trainer.nodes == 1:
        return
    if subject.config.rollout.mode != "server":
        return
    installed = subject.packages.get("deepspeed")
    try:
        fixed = installed is not None and meets(installed, ">=0.18")
    except VersionError:
        fixed = False
    if not fixed:
        release = installed or "(release not known)"
        why = (
            f"with {trainer.nodes} trainer nodes and deepspeed {release} the first "
            "sync may give the server wrong weights: seen with deepspeed 0.14.4, transformers 5.3.0 and "
            "vllm 0.17.0; ZeRO-2 and single nodes were right"
        )
        yield Finding("trainer.deepspeed", "zero3", why, ("zero2",), "refuse" if installed else "warn")


@rule(
    evidence="mcore-bridge 1.6.5 drops mtp.* unless told otherwise, ms-swift#6644",
    level="warn",
    needs="architecture",
)
def mtp_weights_are_kept(subject: Subject) -> Iterator[Finding]:
    """Protects from an export without the multi-token-prediction weights of the checkpoint."""
    config, arch = subject.config, subject.architecture
    if arch is None or not arch.mtp_layers or config.trainer.backend != "megatron":
        return
    args = as_read(config.trainer.args)
    if not args.get("save_missing_weights", True) and not args.get("mtp_num_layers"):
        why = "the checkpoint has MTP weights, which Megatron-SWIFT does not build and so does not save"
        yield Finding("trainer.args.save_missing_weights", False, why, (True,))


@rule(
    evidence="swift 4.6.0 megatron/trainers/base.py:603-611 merges LoraParallelLinear only; on a CPU the "
    "merged checkpoint had the weights of the start in every linear_attn module",
)
def adapters_of_every_layer_are_merged(subject: Subject) -> Iterator[Finding]:
    """Protects from a rollout, and an export, without the adapters of the gated delta nets."""
    config = subject.config
    if config.trainer.backend != "megatron" or config.trainer.tuner != "lora":
        return
    switch = subject.without_mcore_gdn
    if config.cluster.device == "cuda" and switch is not None:
        why = (
            "with it the gated delta nets are those of transformers; their LoRA layers are trained, but "
            "merged neither for the rollout server nor into the checkpoint, without an error"
        )
        legal = ("leave it out", "trainer.tuner: full", "trainer.backend: swift")
        yield Finding("cluster.env.USE_MCORE_GDN", switch, why, legal)
