"""`swift rollout`: the routes of ms-swift's server, and an engine in a process of its own.

As in vLLM the engine outlives a server that is killed, and the server outlives an engine that is: its answers
are then errors. The port moves when it is taken (swift/arguments/deploy_args.py:57), and the socket listens
only when the engine is ready.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from arguments import read, seconds

ENGINE = "VLLM::EngineCore"
POSTS = (
    *("init_communicator", "close_communicator", "update_named_param", "update_flattened_params"),
    *("update_adapter_param", "update_adapter_flattened_param", "process_weights_after_loading"),
    *("reset_prefix_cache", "reset_encoder_cache", "reset_mm_cache"),
)


def engine() -> None:
    """The engine: answers each line of prompts with a line of completions. A closed pipe leaves it waiting,
    as the real one is left waiting for its next step."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for line in sys.stdin:
        seen: Counter[str] = Counter()
        texts = []
        for prompt in json.loads(line):
            texts.append(completion(prompt, seen[prompt]))
            seen[prompt] += 1
        print(json.dumps(texts), flush=True)
    while True:
        time.sleep(3600)


def completion(prompt: str, index: int) -> str:
    """A pure function of the prompt and of how often it was asked before in the same request."""
    return f"<answer>{int(hashlib.sha256(f'{prompt} {index}'.encode()).hexdigest(), 16) % 10}</answer>"


class EngineDead(Exception):
    """The engine's process has ended."""


class Server:
    """The HTTP side, and its connection to the engine."""

    def __init__(self, arguments: dict[str, list[str]]):
        self.world_size = int(arguments["vllm_tensor_parallel_size"][0])
        self.world_size *= int(arguments["vllm_data_parallel_size"][0])
        self.lora = arguments.get("vllm_enable_lora") == ["true"]
        self.model = arguments["model"][0]
        self.lock = threading.Lock()
        self.synced = False
        # a session of its own: nothing that is sent to the server's group reaches the engine
        self.engine = subprocess.Popen(
            [sys.executable, __file__, ENGINE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def generate(self, prompts: list[str]) -> list[str]:
        with self.lock:
            assert self.engine.stdin is not None
            assert self.engine.stdout is not None
            try:
                self.engine.stdin.write(json.dumps(prompts) + "\n")
                self.engine.stdin.flush()
            except BrokenPipeError as error:
                raise EngineDead from error
            line = self.engine.stdout.readline()
        if not line:
            raise EngineDead
        texts: list[str] = json.loads(line)
        return texts

    def infer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        prompts = [request["messages"][-1]["content"] for request in body["infer_requests"]]
        texts = self.generate(prompts)
        if self.synced and (Path(os.environ.get("STANDIN_FAULTS", "/nowhere")) / "garbage").exists():
            texts = ["!" * 64 for _ in texts]
        return [self._output(text) for text in texts]

    def _output(self, text: str) -> dict[str, Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"response": {"model": self.model, "choices": [choice], "usage": {}}, "messages": None}

    def engine_type(self) -> dict[str, Any]:
        kind = {"engine_type": "LLMEngine", "enable_multi_turn": False, "use_gym_env": False}
        return {**kind, "enable_lora": self.lora}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gets: dict[str, Any] = {
                "health": {"status": "ok"},
                "get_world_size": {"world_size": server.world_size},
                "get_model_state_keys": {"keys": ["model.weight"]},
            }
            self.answer(gets.get(self.path.strip("/")))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            route = self.path.strip("/")
            try:
                if route == "infer":
                    self.answer(server.infer(body))
                elif route == "get_engine_type":
                    self.answer(server.engine_type())
                else:
                    server.synced |= route == "update_flattened_params"
                    self.answer({"message": f"Request received, {route}"} if route in POSTS else None)
            except EngineDead:
                print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack")
                print("trace (above) for the root cause.", flush=True)
                self.answer("Internal Server Error", 500)

        def answer(self, value: Any, code: int = 200) -> None:
            content = json.dumps(value if value is not None else {"detail": "Not Found"}).encode()
            self.send_response(code if value is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, form: str, *words: Any) -> None:
            print(f"INFO:     {self.client_address[0]} - {form % words}", flush=True)

    return Handler


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def free_port(start: int) -> int:
    """As swift/utils/utils.py:299, which does not set SO_REUSEADDR: a port in TIME_WAIT counts as taken."""
    for port in range(start, start + 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise SystemExit("no free port")


def main(argv: list[str]) -> None:
    if argv == [ENGINE]:
        engine()
    arguments = read(argv)
    port = free_port(int(arguments["port"][0]))
    if not Path(arguments["model"][0]).is_dir():
        raise SystemExit(f"OSError: {arguments['model'][0]} is no local directory")
    print(
        f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.",
        flush=True,
    )
    server = Server(arguments)
    time.sleep(seconds("LOAD", 0.2))
    http = HttpServer((arguments["host"][0], port), handler(server))

    def stop(_: int, __: object) -> None:
        print("INFO:     Shutting down", flush=True)
        os._exit(0)  # and the engine stays, as vLLM's does

    signal.signal(signal.SIGTERM, stop)
    print("INFO:     Application startup complete.", flush=True)
    print(
        f"INFO:     Uvicorn running on http://{arguments['host'][0]}:{port} (Press CTRL+C to quit)",
        flush=True,
    )
    http.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
