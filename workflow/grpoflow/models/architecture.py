"""The architecture of a Qwen3.5 checkpoint, read from its config.json and from nowhere else.

Qwen3.5 mixes two kinds of layers: gated delta nets (GDN, linear attention) and, every fourth layer, gated
full attention. Field names follow transformers models/qwen3_5/configuration_qwen3_5.py and
models/qwen3_5_moe.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

MODEL_TYPES = {
    "qwen3_5": "dense, with vision tower",
    "qwen3_5_text": "dense, text only",
    "qwen3_5_moe": "mixture of experts, with vision tower",
    "qwen3_5_moe_text": "mixture of experts, text only",
}
"""Supported ``model_type`` values. Qwen3.6 checkpoints carry the same ones."""


class ArchitectureError(ValueError):
    """config.json is not one of a supported model, or lacks keys. The message names all of them."""


class UnknownModel(ArchitectureError):
    """config.json may be right, of a model that is not supported."""


@dataclass(frozen=True)
class Gdn:
    """Gated delta net: heads of the linear-attention layers."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def key_size(self) -> int:
        """Width of the keys, and of the queries."""
        return self.key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Width of the values, and of the output gate."""
        return self.value_heads * self.value_head_dim


@dataclass(frozen=True)
class Moe:
    """Mixture of experts with one shared expert in every layer."""

    experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the full-attention layers. ``mrope_section`` is None for text without
    images."""

    theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, ...] | None


@dataclass(frozen=True)
class Vision:
    """Vision tower and the merger that projects its output to the width of the text model."""

    depth: int
    hidden_size: int
    intermediate_size: int
    heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """A Qwen3.5 model. Exactly one of ``intermediate_size`` (dense) and ``moe`` is set; ``vision`` is None
    without tower."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[str, ...]
    attention_heads: int
    kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    mtp_layers: int
    rope: Rope
    gdn: Gdn
    intermediate_size: int | None
    moe: Moe | None
    vision: Vision | None

    @property
    def layers(self) -> int:
        """Decoder layers without multi-token prediction."""
        return len(self.layer_types)

    @property
    def attention_layers(self) -> int:
        """Layers with full attention and a KV cache."""
        return self.layer_types.count("full_attention")

    @property
    def gdn_layers(self) -> int:
        """Layers with linear attention and a state of constant size."""
        return self.layer_types.count("linear_attention")

    @property
    def query_size(self) -> int:
        """Width of the queries of a full-attention layer; the output gate has the same."""
        return self.attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys of a full-attention layer, and of the values."""
        return self.kv_heads * self.head_dim

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Architecture":
        """Read the parsed config.json of a checkpoint.

        Raises:
            UnknownModel: ``model_type`` is not in MODEL_TYPES.
            ArchitectureError: A key is missing (all missing keys are named), or a value is of another type or
                contradicts another.
        """
        model_type = config.get("model_type")
        if not isinstance(model_type, str):
            raise ArchitectureError(f"config.json: model_type = {model_type!r} must be text")
        if model_type not in MODEL_TYPES:
            known = ", ".join(MODEL_TYPES)
            raise UnknownModel(
                f"config.json: model_type = {model_type!r} is not supported; supported: {known}"
            )
        wrapped = not model_type.endswith("_text")
        top = _Section(config, "")
        text = top.section("text_config") if wrapped else top
        architecture = cls(
            model_type=model_type,
            vocab_size=text.integer("vocab_size"),
            hidden_size=text.integer("hidden_size"),
            layer_types=_layer_types(text),
            attention_heads=text.integer("num_attention_heads"),
            kv_heads=text.integer("num_key_value_heads"),
            head_dim=text.integer("head_dim"),
            max_position_embeddings=text.integer("max_position_embeddings"),
            tie_word_embeddings=_tied(top, text),
            # Checkpoints saved by transformers have no MTP weights and no key for them.
            mtp_layers=text.integer("mtp_num_hidden_layers", 0),
            rope=_rope(text),
            gdn=Gdn(
                key_heads=text.integer("linear_num_key_heads"),
                value_heads=text.integer("linear_num_value_heads"),
                key_head_dim=text.integer("linear_key_head_dim"),
                value_head_dim=text.integer("linear_value_head_dim"),
                conv_kernel=text.integer("linear_conv_kernel_dim"),
            ),
            intermediate_size=None if "moe" in model_type else text.integer("intermediate_size"),
            moe=_moe(text) if "moe" in model_type else None,
            vision=_vision(top.section("vision_config")) if wrapped else None,
        )
        if top.missing:
            raise ArchitectureError(f"config.json of a {model_type} model lacks: {', '.join(top.missing)}")
        _check_values(architecture)
        return architecture


class _Section:
    """A mapping that records the keys it was asked for and does not have, so that one error names all of
    them."""

    def __init__(self, data: Mapping[str, Any], path: str, missing: list[str] | None = None) -> None:
        self.data = data
        self.path = path
        self.missing: list[str] = [] if missing is None else missing

    def section(self, key: str) -> "_Section":
        found = self.data.get(key)
        if not isinstance(found, Mapping):
            self.missing.append(f"{self.path}{key}")
            # Its keys are not missing one by one: the whole section is.
            return _Section({}, f"{self.path}{key}.", [])
        return _Section(found, f"{self.path}{key}.", self.missing)

    def get(self, key: str) -> Any:
        if key not in self.data:
            self.missing.append(f"{self.path}{key}")
        return self.data.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        found = self.data.get(key, default) if default is not None else self.get(key)
        if found is None:
            return 1  # recorded as missing; any number will do until the error is raised
        least = 1 if default is None else default
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise ArchitectureError(
                f"config.json: {self.path}{key} = {found!r} must be an integer, {least} or more"
            )
        return found

    def number(self, key: str) -> float:
        found = self.get(key)
        if found is None:
            return 0.0  # recorded as missing
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < inf:
            raise ArchitectureError(f"config.json: {self.path}{key} = {found!r} must be a number, 0 or more")
        return float(found)


def _layer_types(text: _Section) -> tuple[str, ...]:
    """``layer_types``, or the pattern of ``full_attention_interval`` where the list is absent (as on the
    hub)."""
    layers = text.integer("num_hidden_layers")
    if text.data.get("layer_types") is None:
        interval = text.integer("full_attention_interval")
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))
    if not isinstance(text.data["layer_types"], list):
        raise ArchitectureError(f"config.json: {text.path}layer_types must be a list")
    types = tuple(text.data["layer_types"])
    unknown = sorted({str(kind) for kind in types} - {"linear_attention", "full_attention"})
    if unknown or len(types) != layers:
        raise ArchitectureError(
            f"config.json: {text.path}layer_types must name linear_attention or full_attention for each of "
            f"num_hidden_layers = {layers} layers; it has {len(types)} entries, unknown: {unknown}"
        )
    return types


def _tied(top: _Section, text: _Section) -> bool:
    """The wrapper's key wins over the text model's, as in transformers."""
    for section in (top, text):
        if "tie_word_embeddings" in section.data:
            return bool(section.data["tie_word_embeddings"])
    return bool(top.get("tie_word_embeddings"))


def _rope(text: _Section) -> Rope:
    # rope_parameters is the name since transformers 5; rope_scaling with flat rope_theta the one before.
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(text.data.get(name) or {}, Mapping):
            raise ArchitectureError(f"config.json: {text.path}{name} must be a mapping")
    parameters = text.data.get("rope_parameters") or {**text.data, **(text.data.get("rope_scaling") or {})}
    section = _Section(parameters, f"{text.path}rope_parameters.", text.missing)
    theta, factor = section.number("rope_theta"), section.number("partial_rotary_factor")
    mrope = parameters.get("mrope_section")
    if mrope is not None and not isinstance(mrope, list):
        raise ArchitectureError(f"config.json: {section.path}mrope_section must be a list")
    return Rope(theta, factor, tuple(mrope) if mrope else None)


def _moe(text: _Section) -> Moe:
    return Moe(
        experts=text.integer("num_experts"),
        experts_per_token=text.integer("num_experts_per_tok"),
        intermediate_size=text.integer("moe_intermediate_size"),
        shared_intermediate_size=text.integer("shared_expert_intermediate_size"),
    )


def _vision(section: _Section) -> Vision:
    return Vision(
        depth=section.integer("depth"),
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        heads=section.integer("num_heads"),
        in_channels=section.integer("in_channels"),
        patch_size=section.integer("patch_size"),
        temporal_patch_size=section.integer("temporal_patch_size"),
        spatial_merge_size=section.integer("spatial_merge_size"),
        out_hidden_size=section.integer("out_hidden_size"),
        position_embeddings=section.integer("num_position_embeddings"),
    )


def _check_values(architecture: Architecture) -> None:
    """Relations without which no count would mean anything."""
    gdn, vision = architecture.gdn, architecture.vision
    wrong = []
    if architecture.attention_heads % architecture.kv_heads:
        wrong.append("num_attention_heads must be a multiple of num_key_value_heads")
    if gdn.value_heads % gdn.key_heads:
        wrong.append("linear_num_value_heads must be a multiple of linear_num_key_heads")
    if vision is not None and vision.out_hidden_size != architecture.hidden_size:
        wrong.append("vision_config.out_hidden_size must equal text_config.hidden_size")
    if architecture.moe and architecture.moe.experts_per_token > architecture.moe.experts:
        wrong.append("num_experts_per_tok must not exceed num_experts")
    if wrong:
        raise ArchitectureError(f"config.json: {'; '.join(wrong)}")
