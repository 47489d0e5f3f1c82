"""The few names of torch and ms-swift that `--external_plugins` files import, without torch and ms-swift."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from group import Group


class Tensor:
    """As much of a tensor as an all-reduce of one number needs."""

    def __init__(self, values: list[int], **_: Any):
        self.values = list(values)

    def item(self) -> int:
        return self.values[0]


class MegatronCallback:
    """swift/megatron/callbacks/base.py"""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.args = trainer.args
        self.state = trainer.state

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_step_begin(self) -> None: ...

    def on_step_end(self) -> None: ...

    def on_log(self, logs: dict[str, Any]) -> None: ...

    def on_save(self, output_dir: str) -> None: ...


class MegatronRLHF:
    """swift/megatron/pipelines/train/rlhf.py: the part that connects to the rollout servers."""

    args: Any
    connect: Any

    def _prepare_vllm_client(self) -> Any:
        return self.connect()


def provide(group: Group) -> None:
    """Put the modules in place."""

    def all_reduce(tensor: Tensor, **_: Any) -> None:
        tensor.values = [group.maximum(tensor.values[0])]

    distributed = _module(
        "torch.distributed",
        is_initialized=lambda: True,
        all_reduce=all_reduce,
        get_rank=lambda: group.rank,
        ReduceOp=SimpleNamespace(MAX="max"),
    )
    _module("torch", tensor=Tensor, distributed=distributed, int32="int32", int64="int64")
    _module("swift")
    _module(
        "swift.utils",
        get_current_device=lambda: "cpu",
        is_last_rank=lambda: group.is_last,
        is_master=lambda: group.is_master,
    )
    _module("swift.rewards", ORM=object, orms={})
    _module("swift.megatron")
    _module("swift.megatron.arguments")
    mapping = _module("swift.megatron.callbacks.mapping", megatron_callbacks_map={})
    base = _module("swift.megatron.callbacks.base", MegatronCallback=MegatronCallback)
    callbacks = {"mapping": mapping, "base": base, "MegatronCallback": MegatronCallback}
    _module("swift.megatron.callbacks", megatron_callbacks_map=mapping.megatron_callbacks_map, **callbacks)
    _module("swift.megatron.pipelines")
    _module("swift.megatron.pipelines.train")
    _module("swift.megatron.pipelines.train.rlhf", MegatronRLHF=MegatronRLHF)


def _module(name: str, **names: Any) -> Any:
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    return module


def load(plugin: str) -> None:
    """As `import_external_file` (swift/utils/utils.py:409)."""
    path = Path(plugin).absolute()
    spec = importlib.util.spec_from_file_location(f"_external_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
