"""A rollout for `megatron rlhf` without a server, as an `--external_plugins` file.

Nothing in it is random: a completion is a pure function of its prompt and of its place among those of the
same prompt.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

from swift.infer_engine.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    RolloutOutput,
    UsageInfo,
)
from swift.megatron.pipelines.train.rlhf import MegatronRLHF
from swift.utils import is_last_rank


class PureRollout:
    """What the trainer asks its client; weights are taken and forgotten."""

    enable_lora = enable_multi_turn = use_gym_env = False

    def infer(self, infer_requests: list[Any], *_: Any, **__: Any) -> list[RolloutOutput]:
        seen: Counter[str] = Counter()
        outputs = []
        for request in infer_requests:
            messages = request["messages"] if isinstance(request, dict) else request.messages
            prompt = messages[-1]["content"]
            text = f"<answer>{zlib.crc32(f'{prompt} {seen[prompt]}'.encode()) % 100}</answer>"
            seen[prompt] += 1
            choice = ChatCompletionResponseChoice(0, ChatMessage(role="assistant", content=text), "stop")
            outputs.append(
                RolloutOutput(response=ChatCompletionResponse("pure", [choice], UsageInfo(0, 0, 0)))
            )
        return outputs

    def get_model_state_keys(self) -> list[str]:
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


MegatronRLHF._prepare_vllm_client = lambda _: PureRollout() if is_last_rank() else None
