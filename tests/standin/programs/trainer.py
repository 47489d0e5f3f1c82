"""`megatron rlhf` for GRPO: one process stands for all ranks of a node.

Connects to the rollout servers, asks them for completions at every step, writes logging.jsonl,
completions.jsonl and checkpoints, resumes from them, and calls the callbacks of `--external_plugins` files as
ms-swift does.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoint
import modules
from arguments import read, seconds
from group import Group

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Client:
    """swift/rlhf_trainers/vllm_client.py: waits for `/health`, then talks to all servers."""

    def __init__(self, arguments: dict[str, list[str]]):
        addresses = zip(arguments["vllm_server_host"], arguments["vllm_server_port"], strict=True)
        self.urls = [f"http://{host}:{port}" for host, port in addresses]
        deadline = time.monotonic() + float(arguments["vllm_server_timeout"][0])
        while not all(self._healthy(url) for url in self.urls):
            if time.monotonic() > deadline:
                timeout = arguments["vllm_server_timeout"][0]
                raise ConnectionError(f"Servers not reachable after {timeout}s: {self.urls}")
            time.sleep(0.1)
        self._post_all("close_communicator", {})
        for url, port in zip(self.urls, arguments["vllm_server_group_port"], strict=True):
            with OPENER.open(f"{url}/get_world_size/") as answer:
                size = json.load(answer)["world_size"]
            self._post(url, "init_communicator", {"host": "0.0.0.0", "port": port, "world_size": size + 1})

    def sync(self) -> None:
        for route in ("update_flattened_params", "process_weights_after_loading", "reset_prefix_cache"):
            self._post_all(route, {})

    def infer(self, prompts: list[str]) -> list[str]:
        texts = []
        share = -(-len(prompts) // len(self.urls))
        for index, url in enumerate(self.urls):
            part = prompts[index * share : (index + 1) * share]
            requests = [{"messages": [{"role": "user", "content": prompt}]} for prompt in part]
            answer = self._post(url, "infer", {"infer_requests": requests}) if part else []
            texts += [item["response"]["choices"][0]["message"]["content"] for item in answer]
        return texts

    def _healthy(self, url: str) -> bool:
        try:
            with OPENER.open(f"{url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _post_all(self, route: str, body: dict[str, Any]) -> None:
        for url in self.urls:
            self._post(url, route, body)

    def _post(self, url: str, route: str, body: dict[str, Any]) -> Any:
        # no time-out, as in ms-swift: a server that hangs makes the trainer hang
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/{route}/", json.dumps(body).encode(), headers)
        try:
            with OPENER.open(request) as answer:
                return json.load(answer)
        except (OSError, urllib.error.HTTPError) as error:
            raise RuntimeError(f"Multiple errors: [{error!r}]") from error


class Trainer:
    """swift/megatron/trainers/base.py, as far as callbacks and files are concerned."""

    def __init__(self, arguments: dict[str, list[str]], group: Group, client: Any):
        def integer(name: str) -> int:
            return int(arguments[name][0])

        self.group, self.client = group, client
        self.output = Path(arguments["output_dir"][0])
        self.args = SimpleNamespace(
            train_iters=integer("train_iters"),
            save_steps=integer("save_steps"),
            logging_steps=integer("logging_steps"),
            save_total_limit=integer("save_total_limit"),
            global_batch_size=integer("global_batch_size"),
            num_generations=integer("num_generations"),
            steps_per_generation=integer("steps_per_generation"),
            output_dir=str(self.output),
        )
        self.state = SimpleNamespace(
            iteration=0, consumed_train_samples=0, should_save=False, last_model_checkpoint=None
        )
        if arguments["finetune"] == ["false"]:
            loaded = checkpoint.load(Path(arguments["mcore_model"][0]))
            self.state.iteration, self.state.consumed_train_samples = loaded
            print(f"[INFO:swift] resumed at iteration {self.state.iteration}", flush=True)
        rows = Path(arguments["dataset"][0]).read_text().splitlines()
        self.prompts = [json.loads(row)["messages"][-1]["content"] for row in rows]
        callbacks = sys.modules["swift.megatron.callbacks.mapping"].megatron_callbacks_map
        self.callbacks = [callbacks[name](self) for name in arguments.get("callbacks", [])]

    def call(self, event: str, **facts: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(**facts)

    def train(self) -> None:
        self.call("on_train_begin")
        self.begun, self.first = time.time(), self.state.iteration
        while self.state.iteration < self.args.train_iters:
            self.step()
        self.call("on_train_end")
        if self.group.is_last:
            facts = {"last_model_checkpoint": self.state.last_model_checkpoint, "best_metric": None}
            self._append("logging.jsonl", facts)

    def step(self) -> None:
        args, state = self.args, self.state
        self.call("on_step_begin")
        _maybe_eat()
        _maybe_crash(state.iteration)
        count = args.global_batch_size // args.num_generations
        start = state.consumed_train_samples // args.num_generations
        prompts = [
            self.prompts[(start + index) % len(self.prompts)]
            for index in range(count)
            for _ in range(args.num_generations)
        ]
        texts = [f"<answer>{index % 10}</answer>" for index in range(len(prompts))]
        if self.group.is_last and self.client is not None:
            self.client.sync()
            texts = self.client.infer(prompts)
        time.sleep(seconds("STEP", 0.1))
        self.group.maximum(0)
        state.iteration += 1
        self.call("on_step_end")
        state.consumed_train_samples += args.global_batch_size
        if state.iteration % args.save_steps == 0 or state.iteration >= args.train_iters:
            state.should_save = True
        if self.group.is_last:
            rewards = [zlib.crc32(text.encode()) % 101 / 100 for text in texts]
            table = {
                "gen_step": [state.iteration - self.first - 1] * len(prompts),
                "prompt": prompts,
                "completion": texts,
            }
            self._append("completions.jsonl", table | {"TextReward": rewards, "advantages": rewards})
            if state.iteration == 1 or state.iteration % args.logging_steps == 0:
                self._log()
        if state.should_save:
            state.should_save = False
            directory = checkpoint.save(
                self.output, state.iteration, state.consumed_train_samples, args.save_total_limit, self.group
            )
            state.last_model_checkpoint = str(directory)
            print(f"[INFO:swift] Successfully saved model weights in `{directory}`.", flush=True)
            self.call("on_save", output_dir=str(directory))

    def _log(self) -> None:
        iteration, wanted = self.state.iteration, self.args.train_iters
        elapsed = time.time() - self.begun
        record = {
            "loss": 0.0,
            "reward": round(iteration / (iteration + 20), 6),
            "reward_std": 0.2,
            "frac_reward_zero_std": 0.25,
            "rewards/TextReward/mean": 0.5,
            "completions/mean_length": 9.0,
            "completions/min_length": 8.0,
            "rollout_correction/k3_kl": 1e-3,
            "rollout_correction/log_ppl_abs_diff": 1e-2,
            "grad_norm": 0.4,
            "learning_rate": 1e-3,
            "iteration": f"{iteration}/{wanted}",
            "elapsed_time": f"{elapsed:.0f}s",
            "memory(GiB)": 0.0,
            "train_speed(s/it)": round(elapsed / (iteration - self.first), 6),
        }
        self.call("on_log", logs=record)
        self._append("logging.jsonl", record)
        print(record, flush=True)

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with (self.output / name).open("a") as file:
            file.write(json.dumps(record) + "\n")


def _maybe_eat() -> None:
    """Take memory until the kernel or Slurm ends this process, once for each file `eat`."""
    faults = os.environ.get("STANDIN_FAULTS")
    if faults is None or not (Path(faults) / "eat").exists():
        return
    (Path(faults) / "eat").unlink()
    hoard = []
    while True:
        hoard.append(bytes(range(256)) * (1 << 16))
        time.sleep(0.01)


def _maybe_crash(iteration: int) -> None:
    """Fail at the step that the file `crash` names, at every attempt."""
    faults = Path(os.environ.get("STANDIN_FAULTS", "/nowhere"))
    if (faults / "crash").exists() and iteration == int((faults / "crash").read_text()):
        raise RuntimeError("the file `crash` says so")


def main(argv: list[str]) -> None:
    arguments = read(argv)
    group = Group()
    modules.provide(group)
    for plugin in arguments.get("external_plugins", []):
        modules.load(plugin)
    output = Path(arguments["output_dir"][0])
    if group.is_master:
        output.mkdir(parents=True, exist_ok=True)
        (output / "args.json").write_text(json.dumps(arguments))
    pipeline = modules.MegatronRLHF()
    pipeline.args = SimpleNamespace(vllm_mode=arguments["vllm_mode"][0])
    serves = group.is_last and arguments["vllm_mode"] == ["server"]
    pipeline.connect = lambda: Client(arguments) if serves else None
    client = pipeline._prepare_vllm_client()
    time.sleep(seconds("INIT", 0.2))
    Trainer(arguments, group, client).train()


if __name__ == "__main__":
    main(sys.argv[1:])
