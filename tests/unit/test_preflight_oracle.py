"""500 mutated configurations against an oracle that knows nothing of `grpoflow.plan`.

The oracle is the two static methods cut out of the released ms-swift, and the conditions of the released code
(Megatron-core, ms-swift, vLLM) written down once more as plain arithmetic.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from configurations import CONFIGS, config, model_directory
from grpoflow.preflight import batch as batch_checks
from grpoflow.preflight import check_raw
from grpoflow.preflight import layout as layout_checks
from grpoflow.preflight.rules import CHECKS
from test_batch import cut, swift_source  # noqa: F401 - a fixture

CASES = 500
SIZES = ("9B", "27B", "35B-A3B", "122B-A10B")
JUDGED = {
    rule.id
    for check in CHECKS
    if check.find.__module__ in (batch_checks.__name__, layout_checks.__name__)
    for rule in check.rules
}
"""Rules about batch, layout and placement; memory and policy are not judged here."""


class Oracle:
    """Whether the released code would stop a configuration for its batch, layout or placement."""

    def __init__(self, read: Callable[[str], str]) -> None:
        arguments = read("megatron/arguments/megatron_args.py")
        mixin = "RLHFMegatronArgumentsMixin"
        self.resolve = cut(arguments, mixin, "resolve_generation_batch_size")
        self.validate = cut(arguments, mixin, "validate_batch_dp_alignment")

    def stops(self, raw: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
        trainer, rollout, gpus = raw["trainer"], raw["rollout"], raw["cluster"]["gpus_per_node"]
        shared = rollout["mode"] == "server" and rollout["nodes"] == 0
        per_node = trainer.get("gpus") or (gpus - rollout["gpus"] if shared else gpus)
        if per_node < 1 or per_node + (rollout["gpus"] if shared else 0) > gpus:
            return True
        world = trainer["nodes"] * per_node
        if self._vllm(rollout, text, rollout["gpus"] if shared else gpus, world):
            return True
        if trainer["backend"] == "swift":
            return self._swift(trainer, world)
        return self._layout(trainer["parallel"], text, world) or self._batch(trainer, world)

    def _vllm(self, rollout: Mapping[str, Any], text: Mapping[str, Any], served: int, world: int) -> bool:
        tp, kv = rollout["tensor_parallel_size"], text["num_key_value_heads"]
        if rollout["mode"] == "server":
            if tp > served:
                return True
        elif world % tp:
            return True
        heads = ("num_attention_heads", "linear_num_key_heads", "linear_num_value_heads")
        return any(text[name] % tp for name in heads) or bool(kv % tp and tp % kv)

    def _swift(self, trainer: Mapping[str, Any], world: int) -> bool:
        per_pass = trainer["micro_batch_size"] * world
        if trainer["global_batch_size"] % per_pass:
            return True
        generated = trainer["global_batch_size"] * trainer["steps_per_generation"]
        return bool(generated % trainer["num_generations"])

    def _layout(self, parallel: Mapping[str, int], text: Mapping[str, Any], world: int) -> bool:
        tp, pp, cp = parallel["tensor"], parallel["pipeline"], parallel["context"]
        ep, etp = parallel["expert"], parallel["expert_tensor"]
        experts, kv = text.get("num_experts"), text["num_key_value_heads"]
        width = text["shared_expert_intermediate_size"] if experts else text["intermediate_size"]
        key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
        broken = [
            world % (tp * pp * cp),  # row 1
            world % (etp * ep * pp),
            text["num_attention_heads"] % tp,
            kv % tp and tp % kv,
            key_heads % (tp * cp),
            value_heads % (tp * cp),
            width % tp,
            text["num_hidden_layers"] % pp,
        ]
        if experts:
            broken += [experts % ep, text["moe_intermediate_size"] % etp]
            broken += [ep == 1 and etp != tp]  # nothing stops it, and it trains other weights
        else:
            broken += [ep > 1, etp > 1]
        return any(broken)

    def _batch(self, trainer: Mapping[str, Any], world: int) -> bool:
        parallel = trainer["parallel"]
        dp = world // (parallel["tensor"] * parallel["pipeline"] * parallel["context"])
        gbs, mbs, group = (
            trainer["global_batch_size"],
            trainer["micro_batch_size"],
            trainer["num_generations"],
        )
        if gbs % (mbs * dp):  # row 2
            return True
        try:  # rows 3 to 7
            generated, _ = self.resolve(None, trainer["steps_per_generation"], gbs, group)
            self.validate(generated, group, dp, mbs, world)
        except ValueError:
            return True
        if generated % world:  # row 8
            return True
        consumed = trainer["save_steps"] * gbs  # row 11, at the first checkpoint
        return bool(consumed % group or consumed // group % (mbs * dp))


def mutated(draw: random.Random, models: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """A configuration: a legal one with up to four keys changed."""
    size = draw.choice(SIZES)
    moe = "-A" in size
    raw = config(
        {
            "model": {"path": models[size]},
            "rollout": {"mode": "server", "nodes": 1, "gpus": None, "tensor_parallel_size": 2},
            "trainer": {
                "backend": "megatron",
                "nodes": 2,
                "gpus": None,
                "parallel": {
                    "tensor": 2,
                    "pipeline": 1,
                    "context": 1,
                    "expert": 8 if moe else 1,
                    "expert_tensor": 1,
                },
                "global_batch_size": 128,
                "micro_batch_size": 1,
                "steps_per_generation": 2,
                "save_steps": 20,
            },
        }
    )
    trainer, rollout = raw["trainer"], raw["rollout"]

    def share_a_node() -> None:
        trainer["nodes"] = 1
        rollout.update(mode="server", nodes=0, gpus=draw.choice([1, 2, 4, 7, 8]))

    changes: list[Callable[[], Any]] = [
        lambda: trainer.update(nodes=draw.choice([1, 1, 2, 3, 4])) if rollout["nodes"] else None,
        lambda: trainer.update(gpus=draw.choice([4, 6, 8, 9])),
        lambda: trainer.update(global_batch_size=draw.choice([8, 32, 48, 60, 64, 96, 192, 256])),
        lambda: trainer.update(micro_batch_size=draw.choice([1, 2, 3, 4])),
        lambda: trainer.update(num_generations=draw.choice([2, 4, 6, 8, 16])),
        lambda: trainer.update(steps_per_generation=draw.choice([1, 2, 3, 4])),
        lambda: trainer.update(save_steps=draw.choice([1, 3, 10, 50])),
        lambda: trainer["parallel"].update(tensor=draw.choice([1, 4, 8, 3, 16])),
        lambda: trainer["parallel"].update(pipeline=draw.choice([2, 4, 3, 5])),
        lambda: trainer["parallel"].update(context=draw.choice([2, 4, 3])),
        lambda: trainer["parallel"].update(expert=draw.choice([1, 2, 4, 8, 16, 3])),
        lambda: trainer["parallel"].update(expert_tensor=draw.choice([1, 2, 3])),
        lambda: trainer.update(backend="swift"),
        lambda: rollout.update(mode="colocate"),
        lambda: rollout.update(tensor_parallel_size=draw.choice([1, 4, 8, 3, 16])),
        share_a_node,
    ]
    for change in draw.sample(changes, draw.randint(1, 4)):
        change()
    return raw, size


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    parent = tmp_path_factory.mktemp("models")
    return {size: model_directory(parent, size) for size in SIZES}


def test_verdict_agrees_with_the_oracle(
    swift_source: Callable[[str], str],  # noqa: F811
    models: dict[str, str],
) -> None:
    oracle, draw = Oracle(swift_source), random.Random(20261130)
    text = {size: json.loads((CONFIGS / f"qwen3.5-{size}.json").read_text())["text_config"] for size in SIZES}
    seen: Counter[bool] = Counter()
    for _ in range(CASES):
        raw, size = mutated(draw, models)
        expected = oracle.stops(raw, text[size])
        configs, report = check_raw(raw)
        assert configs, report
        refused = [p for p in report.problems if p.level == "refuse" and p.id in JUDGED]
        assert bool(refused) == expected, (raw["trainer"], raw["rollout"], size, refused)
        seen[expected] += 1
    assert min(seen.values()) >= CASES // 4, seen


JUNK: tuple[Any, ...] = (None, "", "x", -1, 0, 3.5, True, [], [1], {}, {"a": 1}, 10**30, "null", [None])


def test_no_traceback_whatever_is_in_the_file(models: dict[str, str]) -> None:
    """Any key of any section set to junk gives a report."""
    draw = random.Random(7)
    base, _ = mutated(random.Random(1), models)
    base["sft"] = {"dataset": "d", "global_batch_size": 8, "learning_rate": 1.0e-5, "epochs": 1, "args": {}}
    base["trainer"]["args"] = {"val_dataset": "v"}
    verdicts: Counter[str] = Counter()
    for _ in range(CASES):
        raw = json.loads(json.dumps(base))
        for _ in range(draw.randint(1, 3)):
            section = draw.choice(list(raw))
            inner = raw[section] if isinstance(raw[section], dict) else {}
            if not inner or draw.random() < 0.1:
                raw[section] = draw.choice(JUNK)
                continue
            inner[draw.choice([*inner, "args", "nodes", "unknown"])] = draw.choice(JUNK)
            if section in ("trainer", "rollout", "sft") and draw.random() < 0.5:
                name = draw.choice(
                    ["lr", "num_iterations", "reward_model", "vllm_max_model_len", "attention_backend"]
                )
                inner["args"] = {name: draw.choice(JUNK)}
        _, report = check_raw(raw)
        verdicts[report.verdict] += 1
        json.dumps(report.to_json())
    assert verdicts["refuse"] >= CASES // 4
    assert verdicts["refuse"] < CASES
