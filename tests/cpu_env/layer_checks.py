"""Program of the CPU environment: the stand-ins against formulas written out in PyTorch, in one process.

Prints one JSON object: name of the check -> "" or its traceback.
"""

from __future__ import annotations

import json
import math
import traceback
import types
from collections.abc import Callable

import torch
from torch import nn

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def same_gradients(
    layer: nn.Module, formula: Callable[..., torch.Tensor], parameters: list[str], x: torch.Tensor
) -> None:
    """Forward and backward of `layer(x)` against `formula(x, *parameters)` in float64."""
    mine = x.clone().requires_grad_()
    out = layer(mine)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    exact = [x.double().requires_grad_()]
    exact += [layer.get_parameter(name).detach().double().requires_grad_() for name in parameters]
    wanted = formula(*exact)
    (wanted * weight.double()).sum().backward()
    close(out, wanted)
    close(mine.grad, exact[0].grad)
    for name, parameter in zip(parameters, exact[1:], strict=True):
        close(layer.get_parameter(name).grad, parameter.grad)


def randomize(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def rms(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * scale


@check
def rms_norm() -> None:
    x = torch.randn(5, 3, 8)
    same_gradients(randomize(te.RMSNorm(8, eps=1e-3)), lambda x, w: rms(x, w, 1e-3), ["weight"], x)
    zero_centred = te.RMSNorm(8, eps=1e-3, zero_centered_gamma=True)
    close(zero_centred.weight, torch.zeros(8))
    same_gradients(randomize(zero_centred), lambda x, w: rms(x, 1 + w, 1e-3), ["weight"], x)


@check
def rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    x = (torch.randn(4, 64) * 100).bfloat16()
    layer = te.RMSNorm(64, eps=1e-6, params_dtype=torch.bfloat16)
    wanted = rms(x.double(), torch.ones(64, dtype=torch.float64), 1e-6).bfloat16()
    assert torch.equal(layer(x), wanted)


@check
def layer_norm() -> None:
    def formula(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w + b

    same_gradients(randomize(te.LayerNorm(8)), formula, ["weight", "bias"], torch.randn(5, 3, 8))


@check
def linear() -> None:
    layer = randomize(te.Linear(8, 6))
    formula = lambda x, w, b: torch.einsum("sbi,oi->sbo", x, w) + b  # noqa: E731
    same_gradients(layer, formula, ["weight", "bias"], torch.randn(5, 3, 8))
    for mode in ("column", "row", None):
        one = randomize(te.Linear(8, 6, parallel_mode=mode, bias=False))
        same_gradients(one, lambda x, w: torch.einsum("sbi,oi->sbo", x, w), ["weight"], torch.randn(5, 3, 8))


@check
def linear_returns_its_bias_instead_of_adding_it() -> None:
    layer = randomize(te.Linear(8, 6, return_bias=True))
    x = torch.randn(5, 8)
    out, bias = layer(x)
    assert bias is layer.bias
    close(out, torch.einsum("ni,oi->no", x, layer.weight))


@check
def norm_and_linear() -> None:
    layer = te.LayerNormLinear(8, 6, eps=1e-3, normalization="RMSNorm", zero_centered_gamma=True, bias=False)
    same_gradients(
        randomize(layer),
        lambda x, g, w: torch.einsum("sbi,oi->sbo", rms(x, 1 + g, 1e-3), w),
        ["layer_norm_weight", "weight"],
        torch.randn(5, 3, 8),
    )


@check
def grouped_linear() -> None:
    splits = [3, 0, 4]
    expert = torch.tensor([0] * 3 + [2] * 4)

    def formula(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.stack([weights[e] @ row for e, row in zip(expert.tolist(), x, strict=True)])

    layer = randomize(te.GroupedLinear(3, 8, 6, bias=False))
    x = torch.randn(7, 8)
    names = ["weight0", "weight2"]
    # the expert without tokens takes part, with a gradient of zero or none
    same_gradients(
        types_module(lambda x: layer(x, splits), layer), lambda x, a, c: formula(x, a, a, c), names, x
    )
    assert layer.weight1.grad is None or not layer.weight1.grad.any()
    close(layer(x, torch.tensor(splits)), layer(x, splits))


def types_module(forward: Callable[[torch.Tensor], torch.Tensor], owner: nn.Module) -> nn.Module:
    """A module with the parameters of `owner` and another forward."""

    class Wrapped(nn.Module):
        def get_parameter(self, target: str) -> nn.Parameter:
            return owner.get_parameter(target)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    return Wrapped()


def attention_formula(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, scale: float
) -> torch.Tensor:
    """q (sequence, batch, heads, dim); k, v with fewer heads; allowed (batch, sequence, sequence)."""
    group = q.shape[2] // k.shape[2]
    heads = []
    for head in range(q.shape[2]):
        scores = torch.einsum("sbd,tbd->bst", q[:, :, head], k[:, :, head // group]) * scale
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        heads.append(torch.einsum("bst,tbd->sbd", weights, v[:, :, head // group]))
    return torch.cat(heads, -1)


def same_attention(
    got: torch.Tensor, tensors: list[torch.Tensor], allowed: torch.Tensor, scale: float, where: torch.Tensor
) -> None:
    """Forward and backward over the positions (sequence, batch) that are no padding."""
    exact = [t.detach().double().requires_grad_() for t in tensors]
    wanted = attention_formula(exact[0], exact[1], exact[2], allowed, scale)
    weight = torch.randn_like(got) * where[..., None]
    (got * weight).sum().backward()
    (wanted * weight.double()).sum().backward()
    close(got[where], wanted[where])
    for mine, theirs in zip(tensors, exact, strict=True):
        close(mine.grad, theirs.grad)


def qkv(sequence: int = 6, batch: int = 2) -> list[torch.Tensor]:
    return [torch.randn(sequence, batch, heads, 8).requires_grad_() for heads in (4, 2, 2)]


@check
def all_linear_weights_are_marked_as_split() -> None:
    # as Transformer Engine does; else rank 1's experts are missing in the gradient norm
    for mode, dim in (("column", 0), ("row", 1), (None, 0)):
        for layer in (
            te.Linear(8, 6, parallel_mode=mode, bias=False),
            te.LayerNormLinear(8, 6, parallel_mode=mode, bias=False),
            te.GroupedLinear(2, 8, 6, parallel_mode=mode, bias=False),
        ):
            weights = [p for name, p in layer.named_parameters() if name.startswith("weight")]
            assert weights and all(w.tensor_model_parallel and w.partition_dim == dim for w in weights)


@check
def attention_causal_with_grouped_heads() -> None:
    tensors = qkv()
    causal = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 6, 6)
    for scale in (None, 0.7):
        layer = te.DotProductAttention(4, 8, num_gqa_groups=2, softmax_scale=scale)
        for t in tensors:
            t.grad = None
        everywhere = torch.ones(6, 2, dtype=torch.bool)
        same_attention(layer(*tensors), tensors, causal, scale or 8**-0.5, everywhere)


@check
def attention_with_padding() -> None:
    tensors = qkv()
    lengths = torch.tensor([6, 4])
    valid = torch.arange(6)[None] < lengths[:, None]
    forbidden = ~valid[:, None, None, :]
    causal = torch.ones(6, 6, dtype=torch.bool).tril() & valid[:, None, :]
    layer = te.DotProductAttention(4, 8, num_gqa_groups=2)
    out = layer(*tensors, attention_mask=forbidden, attn_mask_type="padding_causal")
    same_attention(out, tensors, causal, 8**-0.5, valid.T)


@check
def attention_with_arbitrary_mask() -> None:
    tensors = qkv()
    allowed = torch.rand(2, 6, 6) > 0.4
    allowed |= torch.eye(6, dtype=torch.bool)
    layer = te.DotProductAttention(4, 8, num_gqa_groups=2)
    out = layer(*tensors, attention_mask=~allowed[:, None], attn_mask_type="arbitrary")
    same_attention(out, tensors, allowed, 8**-0.5, torch.ones(6, 2, dtype=torch.bool))


@check
def attention_over_packed_sequences() -> None:
    # three sequences of 2, 3 and 1 tokens, and two tokens of padding behind them
    bounds = torch.tensor([0, 2, 5, 6], dtype=torch.int32)
    owner = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    tensors = [torch.randn(8, heads, 8).requires_grad_() for heads in (4, 2, 2)]
    layer = te.DotProductAttention(4, 8, num_gqa_groups=2, qkv_format="thd")
    out = layer(*tensors, cu_seqlens_q=bounds, cu_seqlens_kv=bounds, attn_mask_type="padding_causal")
    assert not out[6:].any()
    allowed = torch.ones(8, 8, dtype=torch.bool).tril() & (owner[:, None] == owner[None])
    unpacked = [t.detach().clone()[:, None].requires_grad_() for t in tensors]
    exact = [t.double() for t in unpacked]
    wanted = attention_formula(exact[0], exact[1], exact[2], allowed[None], 8**-0.5)[:, 0]
    weight = torch.randn(8, 32)
    weight[6:] = 0
    (out * weight).sum().backward()
    (wanted * weight.double()).sum().backward()
    close(out[:6], wanted[:6])
    for mine, theirs in zip(tensors, unpacked, strict=True):
        close(mine.grad, theirs.grad[:, 0])


@check
def recomputation_gives_the_same_gradients() -> None:
    layer = randomize(te.Linear(8, 8, bias=False))
    x = torch.randn(3, 8)
    layer(layer(x)).pow(2).sum().backward()
    wanted = layer.weight.grad.clone()
    layer.weight.grad = None
    te.distributed.checkpoint(lambda t: layer(layer(t)), x).pow(2).sum().backward()
    assert torch.equal(layer.weight.grad, wanted)


@check
def adam() -> None:
    from transformer_engine.pytorch.optimizers import FusedAdam  # noqa: PLC0415

    for w_mode, reference in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        start = torch.randn(4, 3, dtype=torch.float64)
        mine, theirs = (nn.Parameter(start.clone()) for _ in range(2))
        settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2}
        ours = FusedAdam([mine], adam_w_mode=w_mode, **settings)
        other = reference([theirs], **settings)
        for _ in range(5):
            gradient = torch.randn(4, 3, dtype=torch.float64)
            mine.grad, theirs.grad = gradient.clone(), gradient.clone()
            ours.step()
            other.step()
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        assert ours.param_groups[0]["step"] == 5
        assert set(ours.state[mine]) == {"exp_avg", "exp_avg_sq"}


@check
def what_would_change_a_result_is_refused() -> None:
    for call in (
        lambda: te.fp8_autocast(enabled=True),
        lambda: te.fp8_model_init(enabled=True),
        lambda: te.Linear(8, 8, fuse_wgrad_accumulation=True),
        lambda: te.GroupedLinear(2, 8, 8, fuse_wgrad_accumulation=True),
        lambda: te.LayerNormLinear(8, 8, return_layernorm_output=True),
        lambda: te.distributed.checkpoint(lambda: None, distribute_saved_activations=True),
    ):
        try:
            call()
        except NotImplementedError:
            continue
        raise AssertionError("accepted")
    try:
        te.DotProductAttention(4, 8, window_size=(4, 0))
    except TypeError:
        return
    raise AssertionError("a sliding window was accepted")


@check
def vllm_experts() -> None:
    from grpoflow_standins.vllm_experts import apply_experts  # noqa: PLC0415

    tokens, hidden, width, experts, k = 7, 8, 6, 5, 2
    x = torch.randn(tokens, hidden)
    w13, w2 = torch.randn(experts, 2 * width, hidden), torch.randn(experts, hidden, width)
    ids = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)])
    weights = torch.rand(tokens, k)
    wanted = torch.zeros(tokens, hidden)
    for t in range(tokens):
        for slot in range(k):
            gate, up = w13[ids[t, slot], :width] @ x[t], w13[ids[t, slot], width:] @ x[t]
            wanted[t] += weights[t, slot] * (w2[ids[t, slot]] @ (gate * torch.sigmoid(gate) * up))
    out = torch.empty(tokens, hidden)
    no_bias = types.SimpleNamespace(w1_bias=None, w2_bias=None)
    silu = types.SimpleNamespace(value="silu")
    arguments = (weights, ids, silu, experts, None, None, None, None, None, None, False)
    apply_experts(no_bias, out, x, w13, w2, *arguments)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


@check
def cuda_is_the_cpu() -> None:
    cpu = torch.device("cpu")
    layer = nn.Linear(2, 2)
    assert not torch.cuda.is_available()
    assert torch.zeros(1, device="cuda").device == cpu
    assert torch.zeros(1, device=torch.device("cuda", 1)).device == cpu
    assert torch.tensor([1], device=torch.cuda.current_device()).device == cpu
    assert torch.zeros(1).to("cuda:0", torch.bfloat16).dtype == torch.bfloat16
    assert torch.zeros(1).to(device="cuda", non_blocking=True).device == cpu
    assert torch.zeros(1).new_zeros(2, device="cuda").device == cpu
    assert torch.zeros(1).cuda(0).pin_memory().device == cpu
    assert torch.empty(1, pin_memory=True).device == cpu
    assert layer.cuda(torch.cuda.current_device()) is layer
    assert layer.to("cuda").weight.device == cpu
    assert layer.weight.type() == "torch.cuda.FloatTensor"
    assert layer.weight.bfloat16().type() == "torch.cuda.BFloat16Tensor"
    assert isinstance(torch.zeros(1, dtype=torch.bfloat16), torch.cuda.BFloat16Tensor)
    assert torch.cuda.device_count() == 1
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    assert event.query() and event.elapsed_time(event) == 0.0


@check
def cuda_random_state_is_the_cpus() -> None:
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state, device="cuda")
    assert torch.equal(torch.rand(3), first)


@check
def token_splits_are_numbers() -> None:
    from megatron.core.transformer.moe import token_dispatcher  # noqa: PLC0415

    splits = token_dispatcher.maybe_move_tensor_to_cpu(torch.tensor([3, 4]), as_numpy=True)
    assert not torch.is_tensor(splits) and splits.tolist() == [3, 4]
    counts = token_dispatcher.maybe_move_tensor_to_cpu(torch.tensor([3, 4]), record_stream=True)
    assert torch.is_tensor(counts)
    assert token_dispatcher.maybe_move_tensor_to_cpu(None, as_numpy=True) is None


@check
def tensor_parallel_random_states_are_forked() -> None:
    from megatron.core.tensor_parallel import random as parallel_random  # noqa: PLC0415

    tracker = parallel_random.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 7)
    torch.manual_seed(1)
    outside = torch.rand(2)
    torch.manual_seed(1)
    with tracker.fork("model-parallel-rng"):
        inside = torch.rand(2)
    assert not torch.equal(inside, outside)
    assert torch.equal(torch.rand(2), outside)  # the fork left the state as it was


def main() -> None:
    torch.set_num_threads(1)
    results = {}
    for name, function in CHECKS.items():
        torch.manual_seed(0)
        try:
            function()
        except Exception:
            results[name] = traceback.format_exc()
        else:
            results[name] = ""
    print(json.dumps(results))


if __name__ == "__main__":
    import megatron.core  # noqa: F401 (its import activates the stand-ins)
    import transformer_engine.pytorch as te

    main()
