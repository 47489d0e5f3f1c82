import json

import pytest
from grpoflow.plan.placement import Placement, PlacementSpec, check_placement, place
from grpoflow.plan.problem import PlanError

TWO_SERVERS = PlacementSpec("server", gpus_per_node=8, trainer_nodes=4, rollout_nodes=2, vllm_tp=4)
SPLIT = PlacementSpec("split", 8, trainer_gpus=(2, 3, 4, 5, 6, 7), rollout_gpus=(0, 1), vllm_tp=2)
COLOCATE = PlacementSpec("colocate", 8, trainer_nodes=2, vllm_tp=16)


def test_rollout_nodes_come_first_and_trainer_ranks_count_from_the_first_trainer_node() -> None:
    placement = place(TWO_SERVERS)
    assert [[role.name for role in node.roles] for node in placement.nodes] == [
        ["rollout0"],
        ["rollout1"],
        ["trainer0"],
        ["trainer1"],
        ["trainer2"],
        ["trainer3"],
    ]
    assert [(server.tp, server.dp, server.gpus) for _, server in placement.rollout_servers] == [
        (4, 2, tuple(range(8)))
    ] * 2
    assert [(role.node_rank, role.first_rank, role.last_rank) for _, role in placement.trainers] == [
        (0, 0, 7),
        (1, 8, 15),
        (2, 16, 23),
        (3, 24, 31),
    ]
    assert placement.trainer_world_size == 32
    assert placement.master_node == 2
    assert placement.sync_client_node == 5


def test_one_node_split_by_gpu() -> None:
    placement = place(SPLIT)
    (node,) = placement.nodes
    rollout, trainer = node.roles
    assert (rollout.kind, rollout.gpus) == ("rollout", (0, 1))
    assert (trainer.kind, trainer.gpus) == ("trainer", (2, 3, 4, 5, 6, 7))
    assert placement.trainers[0][1].nproc_per_node == placement.trainer_world_size == 6
    assert (placement.master_node, placement.sync_client_node) == (0, 0)


def test_colocate_has_trainers_only() -> None:
    placement = place(COLOCATE)
    assert placement.rollout_servers == ()
    assert placement.trainer_world_size == 16
    assert placement.port_block_size == 1


@pytest.mark.parametrize("spec", [TWO_SERVERS, SPLIT, COLOCATE], ids=lambda spec: spec.mode)
def test_json_round_trip(spec: PlacementSpec) -> None:
    placement = place(spec)
    assert Placement.from_json(placement.to_json()) == placement


def test_json_of_an_earlier_version_is_read() -> None:
    """A job that is running goes on after an upgrade."""
    data = json.loads(place(SPLIT).to_json())
    data["nodes"][0]["roles"][0]["vllm_port_offset"] = 3
    assert Placement.from_json(json.dumps(data)) == place(SPLIT)


def test_json_names_every_field_the_launcher_reads() -> None:
    data = json.loads(place(SPLIT).to_json())
    rollout, trainer = data["nodes"][0]["roles"]
    assert rollout.keys() == {
        "name",
        "gpus",
        "tp",
        "dp",
        "server_index",
        "http_port_offset",
        "group_port_offset",
        "kind",
    }
    assert trainer.keys() == {"name", "gpus", "node_rank", "nproc_per_node", "first_rank", "kind"}


def test_ports_never_meet_even_when_all_roles_share_one_host() -> None:
    placement = place(PlacementSpec("server", 8, trainer_nodes=1, rollout_nodes=5, vllm_tp=8))
    used = [placement.master_port_offset]
    for _, server in placement.rollout_servers:
        used += [server.http_port_offset, server.group_port_offset]
    assert sorted(used) == list(range(placement.port_block_size))


@pytest.mark.parametrize(
    ("spec", "id", "key", "legal"),
    [
        (PlacementSpec("server", 8), "server_needs_rollout_nodes", "rollout_nodes", (1,)),
        (PlacementSpec("colocate", 8, rollout_nodes=1), "no_rollout_nodes", "rollout_nodes", (0,)),
        (
            PlacementSpec("split", 8, trainer_nodes=2, trainer_gpus=(1,), rollout_gpus=(0,)),
            "split_is_one_node",
            "trainer_nodes",
            (1,),
        ),
        (
            PlacementSpec("split", 4, trainer_gpus=(2, 3, 4), rollout_gpus=(0, 1)),
            "valid_trainer_gpus",
            "trainer_gpus",
            ((2, 3),),
        ),
        (PlacementSpec("split", 4, trainer_gpus=(2, 3)), "split_gpus_disjoint", "rollout_gpus", ((0, 1),)),
        (PlacementSpec("split", 4, rollout_gpus=(0, 1)), "split_gpus_disjoint", "trainer_gpus", ((2, 3),)),
        (
            PlacementSpec("split", 4, trainer_gpus=(0, 1), rollout_gpus=(1, 2)),
            "split_gpus_disjoint",
            "trainer_gpus",
            ((0, 3),),
        ),
        (PlacementSpec("server", 8, rollout_nodes=1, vllm_tp=16), "server_fits_its_gpus", "vllm_tp", (8, 4)),
        (
            PlacementSpec("server", 8, rollout_nodes=1, vllm_tp=4, vllm_dp=4),
            "server_fits_its_gpus",
            "vllm_dp",
            (2,),
        ),
        (PlacementSpec("colocate", 8, vllm_tp=3), "colocate_vllm_tp_divides_world", "vllm_tp", (4, 2)),
        (PlacementSpec("colocate", 8, vllm_dp=2), "colocate_has_no_vllm_dp", "vllm_dp", (None,)),
        (PlacementSpec("server", 0, rollout_nodes=1), "positive_gpus_per_node", "gpus_per_node", (1,)),
    ],
)
def test_refused_with_a_legal_value(
    spec: PlacementSpec, id: str, key: str, legal: tuple[object, ...]
) -> None:
    (problem,) = check_placement(spec)
    assert (problem.id, problem.key, problem.legal) == (id, key, legal)
    with pytest.raises(PlanError):
        place(spec)


def test_idle_gpus_of_a_server_are_a_warning_and_stay_out_of_the_role() -> None:
    spec = PlacementSpec("server", 8, rollout_nodes=1, vllm_tp=3)
    (problem,) = check_placement(spec)
    assert (problem.severity, problem.key, problem.legal) == ("warning", "vllm_tp", (4, 2))
    ((_, server),) = place(spec).rollout_servers
    assert (server.dp, server.gpus) == (2, (0, 1, 2, 3, 4, 5))


def test_several_problems_at_once() -> None:
    spec = PlacementSpec(
        "split", 4, trainer_nodes=2, rollout_nodes=1, trainer_gpus=(0, 9), rollout_gpus=(0,), vllm_tp=2
    )
    assert [problem.id for problem in check_placement(spec)] == [
        "no_rollout_nodes",
        "valid_trainer_gpus",
        "split_gpus_disjoint",
        "server_fits_its_gpus",
    ]
