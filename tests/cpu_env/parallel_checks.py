"""Program of the CPU environment, for `torch.distributed.run --nproc_per_node 2`: the stand-ins on two ranks.

Each rank holds its part of a layer and compares it with the whole layer in float64. Rank 0 prints one JSON
object: name of the check -> "" or its traceback.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def part(whole: torch.Tensor, dim: int) -> torch.Tensor:
    return whole.chunk(2, dim)[dist.get_rank()]


def set_values(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)


def parallel_linear(mode: str, sequence_parallel: bool, norm: bool = False) -> None:
    """Output, gradient of the input and gradient of the weights, each rank's part of the whole layer's."""
    group = dist.group.WORLD
    x, weight, bias = torch.randn(6, 2, 8), torch.randn(4, 8), torch.randn(4)
    gamma = torch.randn(8) if norm else torch.zeros(8)
    settings = {
        "parallel_mode": mode,
        "tp_group": group,
        "tp_size": 2,
        "sequence_parallel": sequence_parallel,
    }
    if norm:
        layer = te.LayerNormLinear(8, 4, normalization="RMSNorm", zero_centered_gamma=True, **settings)
        set_values(layer.layer_norm_weight, gamma)
    else:
        layer = te.Linear(8, 4, **settings)
    column = mode == "column"
    set_values(layer.weight, part(weight, 0 if column else 1))
    set_values(layer.bias, part(bias, 0) if column else bias)

    exact = [t.double().requires_grad_() for t in (x, weight, bias, gamma)]
    hidden = exact[0]
    if norm:
        hidden = hidden / (hidden.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + exact[3])
    whole = torch.einsum("sbi,oi->sbo", hidden, exact[1]) + exact[2]
    upstream = torch.randn(6, 2, 4)
    (whole * upstream.double()).sum().backward()

    if column:
        mine, wanted_in = (part(x, 0), 0) if sequence_parallel else (x, None)
        wanted_out, grad_out = part(whole, 2), part(upstream, 2)
    else:
        mine, wanted_in = part(x, 2), 2
        wanted_out, grad_out = (part(whole, 0), part(upstream, 0)) if sequence_parallel else (whole, upstream)
    mine = mine.clone().requires_grad_()
    out = layer(mine)
    close(out, wanted_out)
    (out * grad_out).sum().backward()
    close(mine.grad, exact[0].grad if wanted_in is None else part(exact[0].grad, wanted_in))
    close(layer.weight.grad, part(exact[1].grad, 0 if column else 1))
    bias_grad = layer.bias.grad.clone()
    if not column and sequence_parallel:
        # each rank adds the bias to its part of the sequence: the parameter is marked and megatron-core sums
        assert layer.bias.sequence_parallel
        dist.all_reduce(bias_grad)
    close(bias_grad, part(exact[2].grad, 0) if column else exact[2].grad)
    if norm:
        assert layer.layer_norm_weight.sequence_parallel == sequence_parallel
        gamma_grad = layer.layer_norm_weight.grad.clone()
        if sequence_parallel:
            dist.all_reduce(gamma_grad)
        close(gamma_grad, exact[3].grad)
    # without these marks megatron-core leaves rank 1's part out of the gradient norm
    assert layer.weight.tensor_model_parallel
    assert layer.weight.partition_dim == (0 if column else 1)
    assert getattr(layer.bias, "tensor_model_parallel", False) == column


@check
def column() -> None:
    parallel_linear("column", sequence_parallel=False)


@check
def column_sequence_parallel() -> None:
    parallel_linear("column", sequence_parallel=True)


@check
def row() -> None:
    parallel_linear("row", sequence_parallel=False)


@check
def row_sequence_parallel() -> None:
    parallel_linear("row", sequence_parallel=True)


@check
def norm_and_column() -> None:
    parallel_linear("column", sequence_parallel=False, norm=True)


@check
def norm_and_column_sequence_parallel() -> None:
    parallel_linear("column", sequence_parallel=True, norm=True)


@check
def accelerate_gathers_over_gloo() -> None:
    from accelerate.state import PartialState  # noqa: PLC0415
    from accelerate.utils import broadcast_object_list, gather, gather_object  # noqa: PLC0415

    rank = dist.get_rank()
    own = [{"rank": rank}, {"rank": rank}]
    everybody = gather_object(own)
    assert [item["rank"] for item in everybody] == [0, 0, 1, 1]
    assert all(item is not mine for item in everybody for mine in own), (
        "not copies: a change would reach the sender"
    )
    assert gather(torch.tensor([rank])).tolist() == [0, 1]
    assert broadcast_object_list([f"of rank {rank}"], from_process=1) == ["of rank 1"]
    assert PartialState().num_processes == 2


@check
def weights_are_broadcast_over_the_store() -> None:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator  # noqa: PLC0415
    from vllm.distributed.utils import StatelessProcessGroup  # noqa: PLC0415

    rank = dist.get_rank()
    port = [0]
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port[0] = free.getsockname()[1]
    dist.broadcast_object_list(port)
    group = StatelessProcessGroup.create(host="127.0.0.1", port=port[0], rank=rank, world_size=2)
    communicator = PyNcclCommunicator(group, device=0)
    assert (communicator.rank, communicator.world_size, communicator.device.type) == (rank, 2, "cpu")
    for round_number in range(3):
        wanted = torch.arange(10, dtype=torch.bfloat16) + round_number
        tensor = wanted.clone() if rank == 1 else torch.zeros(10, dtype=torch.bfloat16)
        communicator.broadcast(tensor, src=1, stream=None)
        assert torch.equal(tensor, wanted)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name, function in CHECKS.items():
        torch.manual_seed(0)
        try:
            function()
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        problems: list[str] = ["", ""]
        dist.all_gather_object(problems, problem)
        results[name] = "\n".join(filter(None, problems))
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    import megatron.core  # noqa: F401 (its import activates the stand-ins)
    import transformer_engine.pytorch as te

    main()
