"""Packages that do not work together, as the metadata of the training environment and a probe of the nodes
show them."""

from __future__ import annotations

from collections.abc import Iterator

from grpoflow.facts.versions import VersionError, meets

from .rules import Finding, rule
from .subject import Subject

KNOWN_GOOD_TRANSFORMERS = "5.12.1"


def _fits(subject: Subject, package: str, specifier: str) -> bool:
    """Whether a package is there in one of these releases; false where nothing is known of it."""
    version = subject.software.get(package)
    try:
        return version is not None and meets(version, specifier)
    except VersionError:
        return False


def _finding(subject: Subject, why: str, *legal: str) -> Finding:
    environment = subject.config.cluster.environment
    return Finding("cluster.environment", environment, why, legal)


def _hopper(subject: Subject) -> bool:
    capability = subject.compute_capability
    return capability is not None and (9, 0) <= capability < (10, 0)


def _trains_with_megatron(subject: Subject) -> bool:
    config = subject.config
    return "megatron" in (config.trainer.backend, config.sft and config.sft.backend)


@rule(
    evidence="undefined symbols of transformer-engine-cu13 2.12.0 (none), 2.13.0 to 2.16.0; nvidia-cublas "
    "13.1.0.3 lacks it, 13.2.0.9 has it",
    level="warn",
)
def transformer_engine_finds_its_cublas(subject: Subject) -> Iterator[Finding]:
    """Protects from Megatron programs that end at import: 'undefined symbol:
    cublasLtGroupedMatrixLayoutInit_internal'.

    A warning, since a build of one's own, or a library whose symbol was made weak, has the same version.
    """
    if subject.config.cluster.device != "cuda" or not _trains_with_megatron(subject):
        return
    package = "transformer-engine-cu13"
    if _fits(subject, package, ">=2.13") and _fits(subject, "nvidia-cublas", "<13.2"):
        why = (
            f"{package} {subject.software[package]} needs a symbol that came with cuBLAS 13.2; nvidia-cublas "
            f"is {subject.software['nvidia-cublas']}, as torch 2.11.0 asks for"
        )
        yield _finding(subject, why, f"{package}==2.12.0", "nvidia-cublas>=13.2")


@rule(
    evidence="'cuDNN version incompatibility: PyTorch was compiled against (9, 19, 0) but found (9, 14, 0)', "
    "seen with Transformer Engine 2.16.0 and torch 2.11.0",
    level="warn",
)
def one_cudnn_is_found(subject: Subject) -> Iterator[Finding]:
    """Protects from two cuDNN of which Transformer Engine loads the parts of one and torch those of the
    other."""
    if subject.config.cluster.device != "cuda" or not _trains_with_megatron(subject):
        return
    if "LD_LIBRARY_PATH" in subject.config.cluster.env:
        return
    wheels = [name for name in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13") if name in subject.software]
    named = [f"{name} {subject.software[name]}" for name in wheels]
    found = subject.node.cudnn if len(subject.node.cudnn) > 1 else named
    if len(found) > 1:
        which = ", ".join(found)
        why = (
            f"more than one cuDNN ({which}): torch's own must be found first (nvidia/cudnn/lib in its "
            "site-packages), or Transformer Engine mixes them"
        )
        yield _finding(
            subject, why, "one of them", "cluster.env.LD_LIBRARY_PATH that begins with torch's own"
        )


@rule(
    evidence="seen with Megatron GRPO in colocate mode: 'Qwen3_5VisionConfig' object has no attribute "
    "'num_attention_heads' in save_checkpoint; 5.12.1 saves"
)
def transformers_saves_beside_vllm(subject: Subject) -> Iterator[Finding]:
    """Protects from a colocated run that trains and cannot save: vLLM 0.23 registers a Qwen3.5 configuration
    of its own, which transformers 5.17 does not accept."""
    config = subject.config
    if config.rollout.mode != "colocate" or config.trainer.backend != "megatron":
        return
    if _fits(subject, "vllm", ">=0.23,<0.24") and _fits(subject, "transformers", ">=5.17"):
        why = (
            f"transformers {subject.software['transformers']} beside vllm {subject.software['vllm']} in one "
            "process (rollout.mode: colocate) cannot save a checkpoint"
        )
        yield _finding(subject, why, f"transformers=={KNOWN_GOOD_TRANSFORMERS}", "rollout.mode: server")


@rule(
    evidence="seen on an H200: AttributeError in mcore-bridge 1.6.5 model/gpts/qwen3_next.py:570 with "
    "megatron-core 0.18.0; 0.16.1 starts"
)
def transformers_gdn_starts(subject: Subject) -> Iterator[Finding]:
    """Protects from a dense model that Megatron cannot build with USE_MCORE_GDN=0: 'functools.partial' object
    has no attribute 'submodules'."""
    arch, switch = subject.architecture, subject.without_mcore_gdn
    if switch is None or not _trains_with_megatron(subject):
        return
    if arch is not None and arch.moe is None and _fits(subject, "megatron-core", ">=0.18"):
        why = f"with megatron-core {subject.software['megatron-core']} a dense model is not built with it"
        yield Finding("cluster.env.USE_MCORE_GDN", switch, why, ("1", "leave it out"))


@rule(evidence="fla-org/flash-linear-attention#640, seen with fla-core 0.5.2 and triton 3.6.0 on an H200")
def fla_trains_on_hopper(subject: Subject) -> Iterator[Finding]:
    """Protects from a first backward pass that raises: 'Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces
    incorrect results'."""
    software = subject.software
    if not _hopper(subject) or "tilelang" in software or not _fits(subject, "fla-core", ">=0.5"):
        return
    if _fits(subject, "triton", ">=3.4,<3.7.1"):
        why = (
            f"fla-core {software['fla-core']} refuses its backward pass on a Hopper GPU with triton "
            f"{software['triton']} and no tilelang"
        )
        yield _finding(subject, why, "tilelang==0.1.9 besides", "fla-core==0.4.2", "triton>=3.7.1")


@rule(evidence="vllm 0.23.0 model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:150-211,252")
def gated_delta_net_prefill_is_there(subject: Subject) -> Iterator[Finding]:
    """Protects from a server that ends at its first prompt: on Hopper vLLM takes FlashInfer's kernel for
    gated delta nets, whether FlashInfer is installed or not."""
    engine_args = subject.config.rollout.engine_args
    asked = engine_args.get("gdn_prefill_backend")
    software = subject.software
    if not _hopper(subject) or "vllm" not in software or asked not in (None, "auto", "flashinfer"):
        return
    if "flashinfer-python" not in software:
        why = (
            f"on a Hopper GPU vllm {software['vllm']} computes prompts with FlashInfer unless told "
            "otherwise, and flashinfer-python is not installed"
        )
        yield Finding("rollout.engine_args.gdn_prefill_backend", asked, why, ("triton",))
