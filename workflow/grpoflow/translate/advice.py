"""What is worth knowing about a value that a translation keeps. One sentence or two, with their source."""

from __future__ import annotations

from .batch import is_grpo
from .programs import Program


def advice_on(program: Program, name: str) -> str:
    """What to consider about an argument of a training command; "" for nothing."""
    write = _ADVICE.get(name)
    if write is None or not program.name.endswith(("rlhf", "sft")) or program.value(name) is None:
        return ""
    return write(program)


def _save_steps(program: Program) -> str:
    if (
        not 1 <= program.value("save_steps") < 20
        or program.value("save_only_model")
        or program.value("no_save_optim")
    ):
        return ""
    return (
        "A full checkpoint with optimizer state is about 16 bytes per parameter (9B: 144 GB), written that "
        "often; it only bounds the work that a failure can cost: 50 is plenty"
    )


def _eval_steps(program: Program) -> str:
    if not is_grpo(program) or not 1 <= program.value("eval_steps") < 50:
        return ""
    return "Each evaluation generates num_generations completions for every validation prompt; training waits"


def _max_length(program: Program) -> str:
    if not is_grpo(program):
        return ""
    total = program.value("max_length") + program.value("max_completion_length", 512)
    advice = (
        f"With max_completion_length the server needs vllm_max_model_len {total}; without it vLLM plans for "
        "the model's own maximum, and a smaller one cuts completions without a word"
    )
    return advice + ("; 8192 may be meant" if program.value("max_length") == 8096 else "")


def _deepspeed(program: Program) -> str:
    if "zero3" not in str(program.value("deepspeed")):
        return ""
    more = (
        ", once more for the log-probabilities and when weights are sent to vLLM" if is_grpo(program) else ""
    )
    return (
        f"ZeRO-3 gathers every weight in each forward and backward pass{more}. A 9B model fits on 80 GB GPUs "
        "without splitting weights that way: compare zero2, or Megatron, which splits them by TP (--to "
        "megatron). For MoE models use Megatron with expert parallelism (modelscope/ms-swift#8289, #8145)"
    )


def _freeze_vit(program: Program) -> str:
    if program.value("freeze_vit"):
        return ""
    return (
        "Trains the vision tower too (default: frozen): more optimizer state, and activations for every "
        "image patch. Keep it only if the reward depends on seeing better"
    )


def _thinking_prefix(program: Program) -> str:
    if not is_grpo(program):
        return ""
    return (
        "It is on by default, and it touches only answers given as text (swift/template/base.py:1308); "
        "completions come as token ids, and enable_thinking decides on their prefix "
        "(swift/rlhf_trainers/utils.py:719): that one must be the same for server and trainer. Before 4.3.0 "
        "the trainer left the prefix out of its log-probabilities (modelscope/ms-swift#9519)"
    )


def _max_pixels(program: Program) -> str:
    if not is_grpo(program):
        return ""
    return (
        "As an argument it scales images in this program alone (swift/template/base.py:442): a server "
        "without it sees other images than the trainer"
    )


def _warmup_ratio(_: Program) -> str:
    return "A share of all optimizer steps: at 0.01 a run of 100 steps has one step of warm-up"


def _beta(program: Program) -> str:
    if program.value("beta") > 0:
        return "Above 0 a reference model is held in memory, and one more forward pass is made per completion"
    if program.backend == "megatron" and program.value("tuner_type", "full") == "full":
        return "0 saves no memory in full-parameter Megatron GRPO (swift/megatron/trainers/rlhf_mixin.py:31)"
    return ""


def _padding_free(program: Program) -> str:
    if program.value("padding_free") or program.backend == "swift":
        return ""
    return (
        "Padding to the longest sequence of a micro batch costs time; true is the default of Megatron-SWIFT"
    )


_ADVICE = {
    "save_steps": _save_steps,
    "eval_steps": _eval_steps,
    "max_length": _max_length,
    "deepspeed": _deepspeed,
    "freeze_vit": _freeze_vit,
    "add_non_thinking_prefix": _thinking_prefix,
    "max_pixels": _max_pixels,
    "warmup_ratio": _warmup_ratio,
    "lr_warmup_fraction": _warmup_ratio,
    "beta": _beta,
    "padding_free": _padding_free,
}
