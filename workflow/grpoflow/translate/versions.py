"""What the release of ms-swift that a script was written for did otherwise."""

from __future__ import annotations

from grpoflow.facts.gates import status
from grpoflow.facts.versions import VersionError

from .batch import is_grpo
from .programs import VERSION, Program, Source
from .report import Note

OLDEST = "4.0.0"
ALL = ("last_checkpoint_symlink",)
MEGATRON = ("mcore_gated_delta_net",)
GRPO = ("non_thinking_prefix_in_trainer", "server_weight_post_processing")
MEGATRON_GRPO = (
    "multi_node_server_weight_sync",
    "grpo_resume_skips_right_prompts",
    "grpo_loss_not_divided_by_microbatches",
)


def version_note(source: Source, program: Program) -> Note:
    """Which release the configuration is for, and what earlier ones did wrong with such a command."""
    before = source.ms_swift or OLDEST
    changes = []
    features = ALL + (MEGATRON if program.backend == "megatron" else ())
    if is_grpo(program):
        features += GRPO + (MEGATRON_GRPO if program.backend == "megatron" else ())
    for feature in features:
        try:
            then, now = status(feature, before), status(feature, VERSION)
        except VersionError:  # older than anything examined
            then, now = status(feature, OLDEST), status(feature, VERSION)
        if then.status != "supported" and now.status == "supported":
            changes.append(f"before {now.since} {then.why} ({then.evidence.rpartition(', ')[2]})")
    said = f"the script names {source.ms_swift}" if source.ms_swift else "the script names no release"
    why = f"{said}; translated for {VERSION}" + (": " if changes else "") + "; ".join(changes)
    return Note(
        program.name, "ms-swift", source.ms_swift or "", None, "default", f"cluster.ms_swift: {VERSION}", why
    )
