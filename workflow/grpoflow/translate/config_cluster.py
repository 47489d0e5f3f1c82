"""Where the programs of a script run: nodes, GPUs, the server, images and environment variables."""

from __future__ import annotations

from . import batch, names
from .config_writer import ConfigWriter
from .ledger import Ledger, variable_without_effect
from .programs import Program
from .scan import Word
from .slurm import gpus_per_node_of

LOCAL_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::1")
PIXELS_PER_TOKEN = 32 * 32  # Qwen3.5: patches of 16, merged 2 x 2 (swift/model/models/qwen.py:758)
ENGINE = {
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_max_num_seqs": "rollout.max_num_seqs",
    "vllm_enforce_eager": "rollout.enforce_eager",
}


def read_placement(w: ConfigWriter) -> None:
    program = w.main
    nproc, nnodes = batch.world_of(program)
    gpus, nodes = nproc or batch.ASSUMED_GPUS, nnodes or 1
    devices = [device for each in (program, w.server) if each for device in _devices(each)]
    served = _server_gpus(w)
    local = w.trainer is not None and mode_of(w) == "server" and _is_local(w) and nodes == 1
    per_node = gpus_per_node_of(w.source.script.header) or max(
        [gpus + (served or 0) if local else gpus, *(device + 1 for device in devices)]
    )
    w.set("cluster.gpus_per_node", per_node)
    section = "trainer" if w.trainer else "sft"
    w.set(f"{section}.nodes", nodes)
    if w.trainer is None:
        return
    if mode_of(w) == "colocate":
        w.set("rollout.mode", "colocate")
        w.set("rollout.nodes", 0)
    elif local:
        w.set("rollout.nodes", 0)
        free = per_node - gpus
        if served is None and free > 0:
            w.decide(
                "rollout.gpus", free, f"the GPUs of the node that the trainer leaves: {per_node} - {gpus}"
            )
        elif served is None or served + gpus > per_node:
            why = f"no GPU is left beside the trainer's {gpus}: the server gets a node of its own"
            w.decide("rollout.nodes", 1, why)
        else:
            w.set("rollout.gpus", served)
    elif hosts := _open_hosts(w):
        w.decide("rollout.nodes", 1, f"the nodes that serve: the script has {hosts}")
    elif _is_local(w):
        w.decide(
            "rollout.nodes",
            1,
            "the server shared a node with the trainer; on several nodes it gets its own",
        )
    else:
        w.set("rollout.nodes", len(_hosts(w)))
    if gpus != per_node or w.values.get("rollout.gpus"):
        w.set("trainer.gpus", gpus)


def mode_of(w: ConfigWriter) -> str:
    mode: str = w.main.value("vllm_mode", "server")
    return mode


def _hosts(w: ConfigWriter) -> list[str]:
    urls = w.main.value("vllm_server_base_url") or []
    hosts = [url.rpartition("//")[2].partition("/")[0].partition(":")[0] for url in urls]
    return list(dict.fromkeys(hosts or w.main.value("vllm_server_host") or []))


def _is_local(w: ConfigWriter) -> bool:
    """Whether the trainer looks for the server on its own host; without any host ms-swift would not start."""
    return not _open_hosts(w) and all(host in LOCAL_HOSTS for host in _hosts(w))


def _open_hosts(w: ConfigWriter) -> str:
    """Where the hosts of the servers are left open, what the script says."""
    given = [w.main.given.get(name) for name in ("vllm_server_base_url", "vllm_server_host")]
    return " ".join(item.text for item in given if item is not None and not item.usable)


def _server_gpus(w: ConfigWriter) -> int | None:
    """GPUs of the server, if its command says so."""
    if w.server is None:
        return None
    sizes = [max(1, w.server.value(f"vllm_{kind}_parallel_size", 1)) for kind in ("tensor", "data")]
    return len(_devices(w.server)) or sizes[0] * sizes[1]


def read_server(w: ConfigWriter, ledger: Ledger) -> None:
    if mode_of(w) == "colocate" or w.trainer is None:
        for name in list(ledger.pending):
            w.drop(ledger, "no server is needed: the trainer generates by itself", name)
        return
    for name, path in ENGINE.items():
        w.carry(ledger, name, path)
    limit_images(w, ledger)


def limit_images(w: ConfigWriter, ledger: Ledger) -> None:
    limits = ledger.program.value("vllm_limit_mm_per_prompt")
    if not isinstance(limits, dict) or not isinstance(limits.get("image", 0), int):
        return
    target = w.set("rollout.limit_images", limits.get("image", 0))
    others = ", ".join(f"{kind}: {limit}" for kind, limit in limits.items() if kind != "image" and limit)
    why = f"the configuration limits images only, not {others}" if others else ""
    ledger.settle("vllm_limit_mm_per_prompt", "needs a decision" if others else "renamed", target, why)


def read_images(w: ConfigWriter) -> None:
    """One limit for the size of images, for every program alike."""
    found: dict[int, str] = {}
    for ledger in w.ledgers.values():
        pixels = ledger.program.value("max_pixels")
        if pixels is not None and pixels < PIXELS_PER_TOKEN:
            why = f"less than one image token, which has {PIXELS_PER_TOKEN} pixels: left out"
            ledger.settle("max_pixels", "needs a decision", "data.image_max_tokens", why)
        elif pixels is not None:
            tokens = pixels // PIXELS_PER_TOKEN
            found[tokens] = "--max_pixels"
            target = w.set("data.image_max_tokens", tokens)
            why = f"{pixels} / {PIXELS_PER_TOKEN} pixels per image token, the same in every program"
            ledger.settle("max_pixels", "re-derived", target, why)
        for name, unit in (("MAX_PIXELS", PIXELS_PER_TOKEN), ("IMAGE_MAX_TOKEN_NUM", 1)):
            word = ledger.program.env.get(name)
            if word is not None and word.text.isdigit() and int(word.text) >= unit:
                found[int(word.text) // unit] = name
                w.set("data.image_max_tokens", int(word.text) // unit)
    if len(found) > 1:
        values = ", ".join(f"{tokens} ({name})" for tokens, name in found.items())
        w.decide(
            "data.image_max_tokens", min(found), f"the commands limit images differently: {values} tokens"
        )
    trains_vision = w.main.value("freeze_vit") is False or w.main.value("freeze_aligner") is False
    if (found or trains_vision) and w.trainer and "rollout.limit_images" not in w.values:
        w.decide("rollout.limit_images", 1, "the most images that a prompt has: the server refuses more")


def read_environment(w: ConfigWriter) -> None:
    """Environment variables of all commands: those that place processes, and those that are kept."""
    for section, ledger in w.ledgers.items():
        for name, word in ledger.program.env.items():
            if why := variable_without_effect(name, word.text):
                ledger.variable(name, word, "dropped", "", why)
            elif name in names.LAUNCHER_VARIABLES:
                target, why = _launcher_variable(w, section, name)
                ledger.variable(name, word, "re-derived" if target else "dropped", target, why)
            elif name in ("MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM"):
                target = f"data.image_max_tokens: {w.values.get('data.image_max_tokens')}"
                ledger.variable(name, word, "re-derived", target, "the same in every program")
            else:
                _kept_variable(w, ledger, name, word)
    for name in ("NPROC_PER_NODE", "NNODES"):
        unseen = w.source.script.not_exported.get(name)
        if unseen is not None and name not in w.main.env:
            why = f"set in line {unseen.line} without `export`: ms-swift does not see it"
            w.note(name, "needs a decision", "trainer.gpus", why, unseen.line)


def _launcher_variable(w: ConfigWriter, section: str, name: str) -> tuple[str, str]:
    """What a variable of the launcher became, and who sets it now."""
    why = names.LAUNCHER_VARIABLES[name]
    if name == "NNODES":
        return f"{section}.nodes: {w.values.get(f'{section}.nodes')}", why
    if name not in ("NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        return "", why
    if section == "rollout":
        return f"rollout.gpus: {w.values.get('rollout.gpus', 'all of its node')}", why
    if section == "trainer" and "trainer.gpus" in w.values:
        return f"trainer.gpus: {w.values['trainer.gpus']}", why
    why = "the sft stage takes whole nodes" if section == "sft" else why
    return f"cluster.gpus_per_node: {w.values['cluster.gpus_per_node']}", why


def _kept_variable(w: ConfigWriter, ledger: Ledger, name: str, word: Word) -> None:
    path = f"cluster.env.{name}"
    if word.unresolved:
        ledger.variable(
            name, word, "needs a decision", path, "Left out: a configuration expands no variables"
        )
    elif name == "MODELSCOPE_CACHE":
        ledger.variable(name, word, "renamed", w.set("cluster.cache", word.text), "")
    elif "TOKEN" in name.split("_"):
        why = "cluster.env refuses it for its name (TOKEN): export it in the programs' environment"
        ledger.variable(name, word, "needs a decision", "", why)
    elif w.values.get(path, word.text) != word.text:
        why = f"another command sets {w.values[path]}: one value holds for all"
        ledger.variable(name, word, "needs a decision", path, why)
    else:
        ledger.variable(name, word, "carried over", w.set(path, word.text), "")


def _devices(program: Program) -> list[int]:
    word = program.env.get("CUDA_VISIBLE_DEVICES")
    return [int(part) for part in word.text.split(",") if part.strip().isdigit()] if word else []
