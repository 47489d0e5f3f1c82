"""Asking a rollout server whether it is well."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

from .guard import descendants
from .processes import process_start

HEALTH_SECONDS = 5.0
COMPLETION_SECONDS = 300.0

LISTEN = "0A"  # state of a socket in /proc/net/tcp

# straight to the node: a proxy configured for the internet cannot reach it
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Health = Literal["well", "busy", "gone"]


class ServerUnwell(Exception):
    """A server answers, but not with a completion."""


def health(host: str, port: int) -> Health:
    """Ask `/health` at exactly this address.

    `swift rollout` moves to another port when its own is taken (swift/arguments/deploy_args.py:57), so only
    the exact port counts, and only once `listens` says that it is the server's own. A server that accepts the
    connection and does not answer is `busy`: it generates in the thread that would answer
    (swift/pipelines/infer/rollout.py, `infer`), which is no sign of trouble.
    """
    try:
        with OPENER.open(f"http://{host}:{port}/health/", timeout=HEALTH_SECONDS) as answer:
            return "well" if answer.status == 200 else "gone"
    except TimeoutError:
        return "busy"
    except urllib.error.URLError as error:
        return "busy" if isinstance(error.reason, TimeoutError) else "gone"
    except (OSError, ValueError):
        return "gone"


def is_healthy(host: str, port: int) -> bool:
    return health(host, port) == "well"


def listens(pid: int, port: int) -> bool:
    """Whether a process below this one listens on the port: an answer there may come from another program."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for below in descendants(pid) if sockets else ():
        for descriptor in Path(f"/proc/{below}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in sockets:
                    return True
    return False


def engines(pid: int) -> dict[int, str]:
    """The processes of vLLM below a process, called VLLM::EngineCore and VLLM::Worker, each with
    its start time."""
    found = {}
    for below in descendants(pid):
        try:
            line = Path(f"/proc/{below}/cmdline").read_bytes()
        except OSError:
            continue
        if b"VLLM::" in line:
            found[below] = process_start(below)
    return found


def check_completion(host: str, port: int, prompt: str) -> str:
    """Ask for one completion and return its text.

    Raises:
        ServerUnwell: the request failed, or the completion is empty.
    """
    body = {
        "infer_requests": [{"messages": [{"role": "user", "content": prompt}]}],
        "request_config": {"max_tokens": 16, "temperature": 1.0},
    }
    request = urllib.request.Request(
        f"http://{host}:{port}/infer/",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with OPENER.open(request, timeout=COMPLETION_SECONDS) as answer:
            text = _text(json.load(answer))
    except (OSError, urllib.error.URLError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerUnwell(f"http://{host}:{port}/infer/ failed: {error!r}") from error
    if not text.strip():
        raise ServerUnwell(f"http://{host}:{port}/infer/ returned an empty completion")
    return text


def _text(answer: Any) -> str:
    first = answer[0]
    choices = first["response"]["choices"] if "response" in first else first["choices"]
    text: str = choices[0]["message"]["content"]
    return text
