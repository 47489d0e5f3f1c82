"""Program of the CPU environment: which checkpoint's weights does a `swift rollout` server hold?

    rollout_check.py compare URL CHECKPOINT...   JSON: checkpoint -> mean |difference of log-probability|
    rollout_check.py sync URL GROUP_PORT CHECKPOINT   send a checkpoint's weights as a trainer does

The server draws answers at temperature 1 and reports the log-probability of each token that it chose.
transformers computes the same numbers from a checkpoint; they agree, but for rounding, only if the
weights do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import requests
import torch
import transformers
from safetensors.torch import load_file

PROMPTS = [f"Add {a} + {b}." for a in range(4) for b in range(4)]
MAX_TOKENS = 24


def server_samples(url: str) -> list[tuple[list[int], list[int], list[float]]]:
    """Per prompt: prompt ids, generated ids, log-probability of each generated id."""
    body = {
        "infer_requests": [{"messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS],
        "request_config": {
            "max_tokens": MAX_TOKENS,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "seed": 0,
            "logprobs": True,
            "return_details": True,
        },
    }
    answer = requests.post(f"{url}/infer/", json=body, timeout=300)
    answer.raise_for_status()
    samples = []
    for output in answer.json():
        response = output["response"]
        choice = response["choices"][0]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        samples.append((response["prompt_token_ids"], choice["token_ids"], logprobs))
    return samples


def mean_difference(checkpoint: str, samples: list[tuple[list[int], list[int], list[float]]]) -> float:
    """Mean over all generated tokens of |log-probability of the server - that of the checkpoint|."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model_class = getattr(transformers, config.architectures[0])
    model = model_class.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    differences = []
    for prompt_ids, token_ids, logprobs in samples:
        ids = torch.tensor([prompt_ids + token_ids])
        with torch.no_grad():
            predicted = model(input_ids=ids).logits[0].float().log_softmax(-1)
        for offset, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
            differences.append(abs(predicted[len(prompt_ids) + offset - 1, token].item() - logprob))
    return sum(differences) / len(differences)


def sync(url: str, group_port: int, checkpoint: str) -> None:
    """Send the weights of a checkpoint with the client that ms-swift's trainers use."""
    from swift.rlhf_trainers.utils import FlattenedTensorBucket  # noqa: PLC0415 (slow, needed here only)
    from swift.rlhf_trainers.vllm_client import VLLMClient  # noqa: PLC0415

    client = VLLMClient(base_urls=[url], group_ports=group_port)
    client.init_communicator(device="cpu")
    weights = load_file(Path(checkpoint) / "model.safetensors")
    bucket = FlattenedTensorBucket(named_tensors=list(weights.items()))
    client.update_flattened_params(bucket.get_metadata(), bucket.get_flattened_tensor())
    client.process_weights_after_loading()
    client.reset_prefix_cache()
    client.close_communicator()


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    action, url, *rest = sys.argv[1:]
    if action == "compare":
        samples = server_samples(url)
        print(json.dumps({checkpoint: mean_difference(checkpoint, samples) for checkpoint in rest}))
    else:
        sync(url, int(rest[0]), rest[1])


if __name__ == "__main__":
    main()
