"""What releases of ms-swift do with a feature, and package bounds."""

import json

import pytest
from grpoflow.facts.arguments import FACTS, catalogued_versions, load_catalogue
from grpoflow.facts.gates import features, gated_arguments, package_bounds, status
from grpoflow.facts.versions import VersionError, parse_release

GATES = json.loads((FACTS / "version_gates.json").read_text(encoding="utf-8"))["gates"]


@pytest.mark.parametrize(
    ("feature", "version", "expected"),
    [
        ("multi_turn_scheduler", "4.2.3", "refused"),
        ("multi_turn_scheduler", "4.3.0", "supported"),
        ("multi_turn_scheduler", "4.6.0", "supported"),
        ("dataset_shuffle_false", "4.2.0", "refused"),
        ("dataset_shuffle_false", "4.2.1", "supported"),
        ("generation_batch_size_with_steps_per_generation", "4.1.3", "refused"),
        ("generation_batch_size_with_steps_per_generation", "4.2.0", "supported"),
        ("reward_model", "4.6.0", "ignored"),
        ("virtual_pipeline", "4.6.0", "broken"),
        ("async_generate", "4.6.0", "refused"),
        ("mcore_gated_delta_net", "4.0.1", "absent"),
        ("mcore_gated_delta_net", "4.1.0", "supported"),
        ("nccl_comm_warmup", "4.4.0", "refused"),
        ("nccl_comm_warmup", "4.4.2", "supported"),
        ("server_weight_post_processing", "4.2.3", "broken"),
        ("server_weight_post_processing", "4.3.0", "supported"),
        ("last_checkpoint_symlink", "4.5.2", "absent"),
        ("last_checkpoint_symlink", "4.5.3", "supported"),
        ("grpo_resume_skips_right_prompts", "4.5.3", "broken"),
        ("grpo_resume_skips_right_prompts", "4.6.0", "supported"),
        ("swift_grpo_cached_dataset", "4.6.0", "refused"),
    ],
)
def test_status(feature: str, version: str, expected: str) -> None:
    assert status(feature, version).status == expected


def test_later_release_is_assumed_to_be_like_the_newest_one_examined() -> None:
    assert not status("multi_turn_scheduler", "4.6.0").assumed
    later = status("multi_turn_scheduler", "4.7.0")
    assert (later.status, later.assumed, later.since) == ("supported", True, "4.3.0")


def test_release_before_the_first_one_examined() -> None:
    with pytest.raises(VersionError, match=r"3\.12\.6"):
        status("multi_turn_scheduler", "3.12.6")


def test_unknown_feature_names_the_nearest() -> None:
    with pytest.raises(KeyError, match="multi_turn_scheduler"):
        status("multiturn_scheduler", "4.6.0")


def test_rows_are_in_order_and_have_evidence() -> None:
    assert len(set(features())) == len(features())
    for gate in GATES:
        since = [parse_release(row["since"]) for row in gate["rows"]]
        assert since == sorted(set(since)), gate["feature"]
        assert gate["rows"][0]["since"] == "4.0.0", gate["feature"]
        for row in gate["rows"]:
            assert row["status"] in ("supported", "ignored", "refused", "broken", "absent")
            assert row["evidence"], gate["feature"]
            assert row["status"] == "supported" or row["why"], gate["feature"]


@pytest.mark.parametrize("version", catalogued_versions())
def test_gates_agree_with_the_argument_catalogues(version: str) -> None:
    """An argument that is supported, ignored or broken exists; one that does not exist is refused."""
    catalogue = load_catalogue(version)
    for gate in GATES:
        for command in gate["commands"]:
            for name in gate["arguments"]:
                argument = catalogue.arguments(command).get(name)
                settable = argument is not None and argument.type != "unsettable"
                state = status(gate["feature"], version)
                assert settable or state.status == "refused", (gate["feature"], command, name)
                if "no such argument" in state.why:
                    assert argument is None, (gate["feature"], command, name)


def test_gated_arguments_of_a_configuration() -> None:
    args = {
        "multi_turn_scheduler": "gym",
        "async_generate": False,  # off: does not ask for the feature
        "sync_ref_model": "false",
        "num_iterations": 2,
        "reward_model": ["RM"],
        "steps_per_generation": 2,  # gated only together with generation_batch_size
        "use_vllm": True,
        "save_total_limit": None,
    }
    found = {state.feature: state.status for state in gated_arguments("megatron rlhf", args, "4.2.3")}
    assert found == {
        "multi_turn_scheduler": "refused",
        "num_iterations": "refused",
        "reward_model": "ignored",
    }
    assert gated_arguments("swift rlhf", args, "4.2.3") == []
    both = {"generation_batch_size": 128, "steps_per_generation": 2}
    assert [state.feature for state in gated_arguments("megatron rlhf", both, "4.1.3")] == [
        "generation_batch_size_with_steps_per_generation"
    ]
    assert gated_arguments("megatron rlhf", both, "4.2.0") == []


@pytest.mark.parametrize(
    ("package", "version", "allowed"),
    [
        ("transformers", "5.12.1", True),
        ("transformers", "5.19.0", True),
        ("transformers", "5.20.0", False),
        ("transformers", "5.5.0", False),
        ("megatron-core", "0.18.0", True),
        ("megatron-core", "0.20.0", False),
        ("megatron-core", "0.15.3", False),
        ("trl", "0.25.1", False),
        ("trl", "1.0.0", False),
        ("fla-core", "0.4.1", False),
        ("fla-core", "0.4.2", True),
        ("vllm", "0.16.0", False),
        ("vllm", "0.23.0+cu129", True),
        ("python", "3.11.7", False),
    ],
)
def test_package_bounds(package: str, version: str, allowed: bool) -> None:
    (bound,) = (bound for bound in package_bounds("4.6.0") if bound.package == package)
    assert bound.allows(version) is allowed


def test_recommended_set_meets_its_own_bounds() -> None:
    for bound in package_bounds("4.6.0"):
        assert not bound.recommended or bound.allows(bound.recommended), bound


def test_package_bounds_of_another_release() -> None:
    with pytest.raises(VersionError, match=r"4\.5\.3.*4\.6\.0"):
        package_bounds("4.5.3")
