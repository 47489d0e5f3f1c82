"""Lets the trainer load its model while the rollout servers load theirs.

An `--external_plugins` file of ms-swift. The trainer connects to the rollout servers before it builds its
model (ms-swift 4.6.0 swift/megatron/pipelines/train/rlhf.py:33, swift/arguments/rlhf_args.py:503) and waits
there until they are ready, so that one loads after the other. Here it connects when it first needs them,
which is at the end of its own initialisation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class LateClient:
    """Stands for the client until an attribute of it is asked for."""

    def __init__(self, connect: Callable[[], Any]):
        self._connect = connect
        self._client: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask for methods that are not the client's
            raise AttributeError(name)
        if self._client is None:
            self._client = self._connect()
        return getattr(self._client, name)


def patch_megatron() -> None:
    from swift.megatron.pipelines.train.rlhf import MegatronRLHF  # noqa: PLC0415
    from swift.utils import is_last_rank  # noqa: PLC0415

    connect = MegatronRLHF._prepare_vllm_client

    def later(self: Any) -> Any:
        if self.args.vllm_mode != "server" or not is_last_rank():
            return connect(self)
        return LateClient(lambda: connect(self))

    MegatronRLHF._prepare_vllm_client = later


def patch_swift() -> None:
    from swift.arguments import RLHFArguments  # noqa: PLC0415
    from swift.utils import is_master  # noqa: PLC0415

    connect = RLHFArguments._init_external_vllm

    def later(self: Any) -> None:
        def client() -> Any:
            connect(self)
            return self.vllm_client

        if is_master() and (self.vllm_server_host or self.vllm_server_base_url):
            self.vllm_client = LateClient(client)

    RLHFArguments._init_external_vllm = later


if "swift.megatron.pipelines.train.rlhf" in sys.modules:
    patch_megatron()
elif "swift.pipelines.train.rlhf" in sys.modules:
    patch_swift()
