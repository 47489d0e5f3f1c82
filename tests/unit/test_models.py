"""Architectures of all published Qwen3.5 sizes: counts against the totals of the checkpoints' safetensors
indices."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from grpoflow.models.architecture import Architecture, ArchitectureError
from grpoflow.models.counts import (
    attention_layer,
    count_parameters,
    experts_layer,
    flops_per_token,
    gdn_layer,
    mlp_layer,
    router_layer,
    shared_expert_layer,
)

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
SIZES = ["0.8B", "2B", "4B", "9B", "27B", "35B-A3B", "122B-A10B", "397B-A17B"]


def config_of(size: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"qwen3.5-{size}.json").read_text())
    return config


def arch_of(size: str) -> Architecture:
    return Architecture.from_config(config_of(size))


PUBLISHED = {
    # total, text, vision, mtp, embedding: exact integers of the published checkpoints
    "0.8B": (873438784, 752393024, 100592896, 20452864, 254279680),
    "2B": (2274069824, 1881825088, 331416576, 60828160, 508559360),
    "4B": (4659865088, 4205751296, 333514240, 120599552, 635699200),
    "9B": (9653104368, 8953803264, 456010480, 243290624, 1017118720),
    "27B": (27781427952, 26895998464, 460730096, 424699392, 1271398400),
    "35B-A3B": (35951822704, 34660610688, 446571248, 844640768, 508559360),
    "122B-A10B": (125086497008, 122111526912, 451290864, 2523679232, 762839040),
    "397B-A17B": (403397928944, 396346350336, 456010480, 6595568128, 1017118720),
}


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_the_published_checkpoint(size: str) -> None:
    counts = count_parameters(arch_of(size))
    assert (counts.total, counts.text, counts.visual, counts.mtp, counts.embedding) == PUBLISHED[size]
    assert counts.lm_head == (0 if size in {"0.8B", "2B", "4B"} else counts.embedding)


ROUNDED = {
    # active body, active (1e9); GDN mixer, attention mixer, MLP or MoE per layer (1e6); experts (1e9)
    "0.8B": ("0.498", "0.752", "10.543", "7.341", "11.010", "0.000"),
    "2B": ("1.373", "1.882", "21.062", "14.681", "37.749", "0.000"),
    "4B": ("3.570", "4.206", "42.140", "36.701", "70.779", "0.000"),
    "9B": ("6.920", "8.954", "67.404", "58.721", "150.995", "0.000"),
    "27B": ("24.353", "26.896", "115.876", "104.858", "267.387", "0.000"),
    "35B-A3B": ("2.438", "3.455", "33.718", "27.263", "808.978", "32.212"),
    "122B-A10B": ("8.246", "9.771", "88.523", "78.644", "2426.146", "115.964"),
    "397B-A17B": ("15.315", "17.349", "118.014", "104.858", "6457.135", "386.547"),
}


@pytest.mark.parametrize("size", SIZES)
def test_active_parameters_and_layers(size: str) -> None:
    arch = arch_of(size)
    counts = count_parameters(arch)
    feed_forward = sum(part(arch) for part in (mlp_layer, router_layer, experts_layer, shared_expert_layer))
    found = (
        f"{counts.active_body / 1e9:.3f}",
        f"{counts.active / 1e9:.3f}",
        f"{gdn_layer(arch) / 1e6:.3f}",
        f"{attention_layer(arch) / 1e6:.3f}",
        f"{feed_forward / 1e6:.3f}",
        f"{counts.experts / 1e9:.3f}",
    )
    assert found == ROUNDED[size]


def test_122b_keeps_its_decay_and_norm_weights_in_fp32() -> None:
    """The published index of the 122B has 6,912 F32 values: 36 GDN layers of 64 A_log and 128 norm
    weights."""
    arch = arch_of("122B-A10B")
    assert arch.gdn_layers * (arch.gdn.value_heads + arch.gdn.value_head_dim) == 6912


GFLOPS = {
    # body, logits, attention-core coefficient, then forward/train/train with full recompute at 4k, 16k, 32k,
    # 128k
    "0.8B": ("1.03", "0.51", 24576, "1.6/4.9/6.6", "1.9/5.8/7.8", "2.3/7.0/9.4", "4.8/14.3/19.1"),
    "2B": ("2.78", "1.02", 24576, "3.9/11.7/15.6", "4.2/12.6/16.8", "4.6/13.8/18.4", "7.0/21.1/28.1"),
    "4B": ("7.24", "1.27", 65536, "8.8/26.3/35.1", "9.6/28.8/38.3", "10.7/32.0/42.6", "17.1/51.3/68.4"),
    "9B": ("13.94", "2.03", 65536, "16.2/48.7/65.0", "17.0/51.1/68.2", "18.1/54.4/72.5", "24.6/73.7/98.3"),
    "27B": (
        "49.01",
        "2.54",
        196608,
        "52.4/157.1/209.4",
        "54.8/164.3/219.1",
        "58.0/174.0/232.0",
        "77.3/232.0/309.3",
    ),
    "35B-A3B": ("5.00", "1.02", 81920, "6.4/19.1/25.4", "7.4/22.1/29.4", "8.7/26.1/34.8", "16.8/50.3/67.0"),
    "122B-A10B": (
        "16.79",
        "1.53",
        196608,
        "19.1/57.4/76.5",
        "21.5/64.6/86.2",
        "24.8/74.3/99.0",
        "44.1/132.3/176.4",
    ),
    "397B-A17B": (
        "31.01",
        "2.03",
        245760,
        "34.0/102.1/136.2",
        "37.1/111.2/148.3",
        "41.1/123.3/164.4",
        "65.3/195.8/261.0",
    ),
}


@pytest.mark.parametrize("size", SIZES)
def test_flops_per_token(size: str) -> None:
    flops = flops_per_token(arch_of(size))
    body, logits, core, *rows = GFLOPS[size]
    assert (f"{flops.body / 1e9:.2f}", f"{flops.logits / 1e9:.2f}", flops.attention_core) == (
        body,
        logits,
        core,
    )
    found = [
        "/".join(
            f"{f / 1e9:.1f}" for f in (flops.forward(s), flops.train(s), flops.train(s, full_recompute=True))
        )
        for s in (4096, 16384, 32768, 131072)
    ]
    assert found == rows


def test_flops_are_about_two_per_active_parameter() -> None:
    """Independent of the formulas: each weight takes part in one multiply-add per token; the embedding in
    none."""
    for size in SIZES:
        arch = arch_of(size)
        assert flops_per_token(arch).body == pytest.approx(2 * count_parameters(arch).active_body, rel=0.05)


def test_mtp_adds_a_layer_and_a_second_output() -> None:
    arch = arch_of("9B")
    without, with_mtp = flops_per_token(arch), flops_per_token(arch, mtp=True)
    assert with_mtp.logits == 2 * without.logits
    assert with_mtp.body - without.body == pytest.approx(2 * count_parameters(arch).mtp, rel=0.001)
    assert with_mtp.attention_core == without.attention_core // 8 * 9


def text_only(size: str) -> dict[str, Any]:
    config = config_of(size)
    return {**config["text_config"], "tie_word_embeddings": config["tie_word_embeddings"]}


@pytest.mark.parametrize("size", ["9B", "35B-A3B"])
def test_text_only_checkpoint(size: str) -> None:
    arch = Architecture.from_config(text_only(size))
    assert arch.vision is None
    counts = count_parameters(arch)
    assert (counts.text, counts.visual) == (PUBLISHED[size][1], 0)


def test_layer_types_win_over_the_interval() -> None:
    config = config_of("9B")
    types = ["full_attention", *["linear_attention"] * 31]
    config["text_config"]["layer_types"] = types
    arch = Architecture.from_config(config)
    assert (arch.attention_layers, arch.gdn_layers) == (1, 31)


def test_full_attention_is_every_fourth_layer() -> None:
    types = arch_of("0.8B").layer_types
    assert [i + 1 for i, kind in enumerate(types) if kind == "full_attention"] == [4, 8, 12, 16, 20, 24]


def test_old_names_of_the_rope_keys() -> None:
    config = config_of("9B")
    rope = config["text_config"].pop("rope_parameters")
    config["text_config"] |= {
        "rope_theta": rope["rope_theta"],
        "partial_rotary_factor": rope["partial_rotary_factor"],
    }
    config["text_config"]["rope_scaling"] = {"type": "default", "mrope_section": [11, 11, 10]}
    assert Architecture.from_config(config).rope == arch_of("9B").rope


def test_checkpoint_without_mtp_key_has_none() -> None:
    config = config_of("9B")
    del config["text_config"]["mtp_num_hidden_layers"]
    assert count_parameters(Architecture.from_config(config)).mtp == 0


def test_every_missing_key_is_named() -> None:
    config = config_of("35B-A3B")
    del config["tie_word_embeddings"], config["vision_config"]["depth"]
    for key in ("num_experts", "head_dim", "full_attention_interval"):
        del config["text_config"][key]
    del config["text_config"]["rope_parameters"]["rope_theta"]
    with pytest.raises(ArchitectureError) as error:
        Architecture.from_config(config)
    for key in (
        "text_config.num_experts",
        "text_config.head_dim",
        "text_config.full_attention_interval",
        "text_config.rope_parameters.rope_theta",
        "vision_config.depth",
        "tie_word_embeddings",
    ):
        assert key in str(error.value)


def test_missing_section_is_named_once() -> None:
    config = config_of("9B")
    del config["text_config"]
    with pytest.raises(ArchitectureError, match=r"lacks: text_config$"):
        Architecture.from_config(config)


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen4_exp"])
def test_other_models_are_refused(model_type: str) -> None:
    config = config_of("9B") | {"model_type": model_type}
    with pytest.raises(ArchitectureError, match="is not supported; supported: qwen3_5, "):
        Architecture.from_config(config)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("text_config", "num_key_value_heads"), 3, "num_attention_heads must be a multiple"),
        (("text_config", "linear_num_value_heads"), 24, "linear_num_value_heads must be a multiple"),
        (("vision_config", "out_hidden_size"), 1024, "out_hidden_size must equal"),
        (("text_config", "head_dim"), "256", "text_config.head_dim = '256' must be an integer"),
        (
            ("text_config", "layer_types"),
            ["linear_attention"],
            "num_hidden_layers = 32 layers; it has 1 entries",
        ),
        (("text_config", "layer_types"), ["mamba"] * 32, r"unknown: \['mamba'\]"),
    ],
)
def test_contradictions_are_refused(path: tuple[str, str], value: object, message: str) -> None:
    config = copy.deepcopy(config_of("9B"))
    config[path[0]][path[1]] = value
    with pytest.raises(ArchitectureError, match=message):
        Architecture.from_config(config)
