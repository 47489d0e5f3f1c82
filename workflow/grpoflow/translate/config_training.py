"""What the training commands of a script learn from, and how."""

from __future__ import annotations

from math import ceil
from pathlib import PurePosixPath

from grpoflow.facts.gates import gated_arguments
from grpoflow.readers import READERS

from . import batch, names
from .config_cluster import ENGINE, limit_images, mode_of
from .config_writer import PLACEHOLDER, ConfigWriter, is_choice
from .ledger import SECRET, Ledger
from .programs import VERSION, Program, catalogue
from .report import Outcome

NO_EVALUATION = "no evaluation inside of training: stage evaluate compares before and after on data.val"
MODEL = {
    name: f"model.{name}" for name in ("model_type", "template", "enable_thinking", "system", "torch_dtype")
}
TUNER = {
    **{name: name for name in ("lora_rank", "lora_alpha", "freeze_vit", "freeze_aligner")},
    **{name: name for name in ("weight_decay", "adam_beta2", "seed")},
    "tuner_type": "tuner",
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "optimizer_cpu_offload": "optimizer_cpu_offload",
}  # fmt: skip
GRPO = {
    "max_length": "data.max_length",
    "truncation_strategy": "data.truncation_strategy",
    "dataset_num_proc": "data.num_proc",
    "reward_funcs": "rewards.functions",
    "reward_weights": "rewards.weights",
    **{name: f"rollout.{name}" for name in ("temperature", "top_p", "top_k")},
    **{
        name: f"trainer.{name}"
        for name in (
            *("num_generations", "max_completion_length", "loss_type", "beta", "epsilon", "epsilon_high"),
            *("overlong_filter", "dynamic_sample", "log_completions", "save_steps", "logging_steps"),
        )
    },
}
# arguments that the workflow sets by itself
OURS = {
    "rlhf_type": "the workflow is GRPO",
    "output_dir": "every experiment has its own results directory",
    "add_version": "off: a resumed run must find its checkpoints under the same path",
    "load_from_cache_file": "on: the data set is frozen and its cache is shared",
    "split_dataset_ratio": "0: training and held-out rows are two files",
    "check_model": "off: it asks the hub",
    "use_vllm": "on",
    "eval_strategy": NO_EVALUATION,
    "eval_steps": NO_EVALUATION,
    "eval_iters": NO_EVALUATION,
    "per_device_eval_batch_size": NO_EVALUATION,
    "num_generations_eval": f"{NO_EVALUATION} (evaluate.samples)",
    "resume_from_checkpoint": "a run resumes from its own last checkpoint",
    "finetune": "set when a run starts, unset when it resumes",
    "no_load_optim": "set when a run starts, unset when it resumes",
    "no_load_rng": "set when a run starts, unset when it resumes",
    "save_safetensors": "on",
    "sequence_parallel": "on where TP is above 1",
    "vllm_server_host": "known when the server has started",
    "vllm_server_port": "known when the server has started",
    "vllm_server_base_url": "known when the server has started",
    "vllm_server_group_port": "a free port of the job's own block",
    "host": "the server listens on all addresses of its node",
    "port": "a free port of the job's own block",
    "vllm_max_model_len": "data.max_length + trainer.max_completion_length",
    "vllm_data_parallel_size": "the GPUs of a server / rollout.tensor_parallel_size",
    "logging_dir": "inside the run directory",
    "tensorboard_dir": "inside the run directory",
}


def read_model(w: ConfigWriter) -> None:
    first = w.sft or w.main
    path = first.value("model")
    if path is None:
        w.decide("model.path", PLACEHOLDER, "the Hugging Face directory to start from")
    else:
        w.set("model.path", path)
    for ledger in w.ledgers.values():
        _model_argument(w, ledger, first, path)
        for name, target in MODEL.items():
            if ledger.program is first or target not in w.values:
                w.carry(ledger, name, target)
            w.drop(ledger, f"{target} holds for every program", name)
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            if ledger.program.value(name):
                ledger.settle(name, "renamed", w.set("model.torch_dtype", dtype))
            w.drop(ledger, "the type is model.torch_dtype", name)


def _model_argument(w: ConfigWriter, ledger: Ledger, first: Program, path: str | None) -> None:
    value = ledger.program.value("model")
    if value is None:
        ledger.settle("model", "needs a decision", "model.path")
        return
    output = first.value("output_dir", "")
    if value == path:
        why = "a name on a hub has to be downloaded first: the workflow reads a directory"
        w.settle(ledger, "model", path, "model.path", why if _is_hub_name(value) else "")
    elif ledger.program is not first and output and value.startswith(output.rstrip("/")):
        ledger.settle("model", "dropped", "", "the result of the SFT command: stage sft makes it")
    else:
        why = "not the model of the other command: which one does the run start from?"
        ledger.settle("model", "needs a decision", f"model.path: {path}", why)


def read_grpo(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    _tuning(w, "trainer", program, ledger)
    _data(w, program, ledger)
    for name, path in GRPO.items():
        w.carry(ledger, name, path)
    w.defaults(ledger, GRPO)
    if "max_length" not in program.given:
        w.decide(
            "data.max_length",
            2048,
            "ms-swift takes the model's own maximum; longer prompts are dropped here",
        )
    plugins = program.value("external_plugins") or []
    if plugins:
        doubt = "" if len(plugins) == 1 else f"one file: import the others from it ({', '.join(plugins[1:])})"
        w.settle(ledger, "external_plugins", plugins[0], "rewards.plugin", doubt)
    if not program.value("reward_funcs"):
        why = "names of the reward functions"
        if program.value("reward_model"):
            why += ": the script has a reward model only, and the configuration needs a function"
        w.decide("rewards.functions", [PLACEHOLDER], why)
    _trackers(w, program, ledger)
    for name in ("project", "wandb_project", "swanlab_project"):
        w.carry(ledger, name, "tracking.project")
    kept = program.value("save_total_limit")
    if kept is not None:
        why = "at least 2 are kept" if kept < 2 else ""
        target = w.set("trainer.save_total_limit", max(kept, 2))
        ledger.settle("save_total_limit", "re-derived" if why else "carried over", target, why)
    _optimizer_state(w, program, ledger)
    if program.value("save_strategy", "steps") == "steps":
        ledger.settle("save_strategy", "carried over", "", "always so")
    else:
        ledger.settle(
            "save_strategy", "needs a decision", "trainer.save_steps", "checkpoints are written by steps"
        )
    if program.value("ref_model") == program.value("model"):
        ledger.settle("ref_model", "dropped", "", "the reference is the model that training starts from")
    if program.value("use_vllm") is False:
        ledger.settle(
            "use_vllm", "needs a decision", "rollout.mode", "completions are always generated by vLLM"
        )
    _generation(w, program, ledger)


def _generation(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    mode = mode_of(w)
    if program.value("vllm_mode") is None:
        w.decide("rollout.mode", mode, "the script gives no --vllm_mode, which ms-swift refuses")
    ledger.settle("vllm_mode", "renamed", f"rollout.mode: {mode}")
    if mode == "colocate":
        for name, path in ENGINE.items():
            w.carry(ledger, name, path)
        limit_images(w, ledger)
        for name, value in (("sleep_level", 1), ("offload_model", True), ("offload_optimizer", True)):
            if program.value(name) == value:
                ledger.settle(name, "carried over", "", "always so in mode colocate")
        return
    if timeout := program.value("vllm_server_timeout"):
        why = "seconds within which the servers must be healthy"
        target = w.set("rollout.startup_timeout", max(1, ceil(timeout)))
        ledger.settle("vllm_server_timeout", "renamed", target, why)
    for name in list(ledger.pending):
        ours = name in OURS or name == "vllm_server_timeout"
        if not ours and (
            name.startswith("vllm_") or name in ("sleep_level", "offload_model", "offload_optimizer")
        ):
            w.drop(ledger, "no effect here in mode server: the engine is started by `swift rollout`", name)
    if w.server is None:
        why = "the script has no `swift rollout`: the workflow starts the server by itself"
        w.note("`swift rollout`", "default", "rollout:", why)


def _data(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    for name, path, what in (
        ("dataset", "data.train", "the prompts to train on"),
        ("val_dataset", "data.val", "held-out prompts, for stage evaluate"),
    ):
        files = program.value(name) or []
        if not files:
            w.decide(path, f"{PLACEHOLDER}.jsonl", f"JSONL with {what}")
            ledger.settle(name, "needs a decision", path)
            continue
        w.settle(ledger, name, files[0], path, _doubt_about(files))


def _trackers(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    wanted = program.value("report_to")
    if wanted is None:
        return
    known = [name for name in wanted if name in ("tensorboard", "wandb", "swanlab")]
    doubt = (
        "" if len(known) == len(wanted) or wanted == ["none"] else "there are tensorboard, wandb and swanlab"
    )
    w.settle(ledger, "report_to", known, "tracking.report_to", doubt)


def _optimizer_state(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    for name in ("save_only_model", "no_save_optim"):
        without = program.value(name)
        if without is not None:
            doubt = "without it a run cannot be resumed" if without else ""
            w.settle(ledger, name, not without, "trainer.save_optimizer", doubt)
    w.drop(ledger, "goes with trainer.save_optimizer", "no_save_rng")


def placeholders_for_grpo(w: ConfigWriter) -> None:
    why = "the script has no GRPO command"
    w.decide("data.train", f"{PLACEHOLDER}.jsonl", f"{why}: JSONL with prompts")
    w.decide("data.val", f"{PLACEHOLDER}.jsonl", f"{why}: JSONL with held-out prompts")
    w.decide("rewards.functions", [PLACEHOLDER], f"{why}: names of the reward functions")
    w.decide("trainer.global_batch_size", 64, f"{why}: completions per optimizer step")
    w.decide("trainer.learning_rate", 1e-6, f"{why}: peak learning rate")
    w.decide("trainer.epochs", 1, f"{why}: passes over the prompts")


def read_sft(w: ConfigWriter, program: Program, ledger: Ledger) -> None:
    _tuning(w, "sft", program, ledger)
    w.values.setdefault("sft.nodes", batch.world_of(program)[1] or 1)
    files = program.value("dataset") or []
    if files:
        w.settle(ledger, "dataset", files[0], "sft.dataset", _doubt_about(files))
    else:
        w.decide("sft.dataset", f"{PLACEHOLDER}.jsonl", "JSONL with complete conversations")
        ledger.settle("dataset", "needs a decision", "sft.dataset")
    if "max_length" in program.given:
        w.carry(ledger, "max_length", "sft.max_length")
    else:
        w.decide("sft.max_length", 4096, "ms-swift takes the model's own maximum")
    if "data.num_proc" not in w.values:
        w.carry(ledger, "dataset_num_proc", "data.num_proc")
    w.drop(ledger, "data.num_proc holds for every program", "dataset_num_proc")
    w.drop(
        ledger,
        "the sft stage keeps the last checkpoint only, and its own log",
        *(
            "save_steps",
            "save_strategy",
            "save_total_limit",
            "save_only_model",
            "no_save_optim",
            "no_save_rng",
        ),
        *("logging_steps", "report_to", "val_dataset"),
    )
    w.drop(ledger, "the export stage merges adapters", "merge_lora")


def _tuning(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    w.set(f"{section}.backend", program.backend)
    tuner = program.value("tuner_type", "lora" if program.backend == "swift" else "full")
    paths = {name: f"{section}.{key}" for name, key in TUNER.items()}
    for name, path in paths.items():
        w.carry(ledger, name, path)
    w.defaults(ledger, {n: p for n, p in paths.items() if tuner != "full" or not n.startswith("lora_")})
    rate = "learning_rate" if program.backend == "swift" else "lr"
    if rate not in program.given:
        value = 1e-5 if tuner == "full" else 1e-4
        why = f"the default of `{program.name}` for tuner_type {tuner}"
        ledger.missing(f"--{rate}", "default", w.set(f"{section}.learning_rate", value), why)
    elif f"{section}.learning_rate" not in w.values:
        w.decide(f"{section}.learning_rate", 1e-6, f"--{rate} is not known in the script")
    if program.value("target_modules") == ["all-linear"]:
        ledger.settle("target_modules", "carried over", "", "always so")
    _batch(w, section, program, ledger)
    _duration(w, section, program, ledger)
    _schedule(w, section, program, ledger)
    if program.backend == "swift":
        _swift(w, section, program, ledger)
    else:
        _megatron(w, section, program, ledger)


def _batch(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    numbers = batch.numbers_of(program)
    if program.backend == "swift":
        micro = batch.swift_spec(program).per_device_train_batch_size
        formula = batch.swift_formula(program)
        sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    else:
        micro, formula = batch.megatron_spec(program).micro_batch_size, ""
        sizes = ("micro_batch_size", "global_batch_size")
    targets = (
        w.set(f"{section}.micro_batch_size", micro),
        w.set(f"{section}.global_batch_size", numbers.step),
    )
    for name, target in zip(sizes, targets, strict=True):
        if name not in program.given:
            why = f"the default of `{program.name}`. {formula}".strip()
            ledger.missing(f"--{name}", "default", target, why)
        outcome: Outcome = "carried over" if target.partition(":")[0].endswith(f".{name}") else "re-derived"
        ledger.settle(name, outcome, target, "" if target == targets[0] else formula)
    if unknown := batch.unknown_of(program):
        w.comments[f"{section}.global_batch_size"] = "; ".join(unknown)
    if numbers.rollout is None:
        return
    steps = max(1, ceil(numbers.rollout / numbers.step))
    target = w.set("trainer.steps_per_generation", steps)
    why = f"optimizer steps per rollout: {numbers.rollout} / {numbers.step} completions"
    same = program.backend == "megatron"
    ledger.settle(
        "steps_per_generation", "carried over" if same else "re-derived", target, "" if same else why
    )
    ledger.settle("generation_batch_size", "re-derived", target, why)


def _duration(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    swift = program.backend == "swift"
    limit = "max_steps" if swift else "train_iters"
    steps, epochs = program.value(limit, -1), program.value("num_train_epochs")
    if steps > 0 and (swift or epochs is None):
        ledger.settle(limit, "renamed", w.set(f"{section}.train_steps", steps))
        ledger.settle("num_train_epochs", "dropped", "", f"{limit} is given, and counts")
        return
    given = program.given.get(limit)
    if given is not None and not given.usable:
        w.decide(
            f"{section}.epochs", 1, f"how long to train: --{limit} {given.text} is not known or not legal"
        )
        ledger.settle(limit, "needs a decision", f"{section}.train_steps")
        ledger.settle("num_train_epochs", "dropped", "", f"{limit} is given, and counts")
        return
    why = "the epochs count (swift/megatron/arguments/megatron_args.py:1149)" if steps > 0 else "not positive"
    ledger.settle(limit, "dropped", "", why)
    path = f"{section}.epochs"
    if epochs is None and swift and "num_train_epochs" not in program.given:
        ledger.missing("--num_train_epochs", "default", w.set(path, 3), f"the default of `{program.name}`")
    elif epochs is None or epochs <= 0:
        w.decide(path, 1, "how long to train: epochs or train_steps")
    elif epochs == int(epochs):
        ledger.settle("num_train_epochs", "renamed", w.set(path, int(epochs)))
    else:
        doubt = f"{epochs:g} in the script; whole epochs only: give train_steps for a part of one"
        w.settle(ledger, "num_train_epochs", ceil(epochs), path, doubt)
    ledger.settle("num_train_epochs", "needs a decision", path)


def _schedule(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    name = "lr_scheduler_type" if program.backend == "swift" else "lr_decay_style"
    kind = program.value(name, "cosine")
    schedule = {"constant_with_warmup": "constant"}.get(kind, kind)
    path = f"{section}.lr_schedule"
    if not is_choice(path, schedule):
        why = "the configuration knows constant, cosine and linear; it was left out"
        ledger.settle(name, "needs a decision", path, why)
    elif name in program.given:
        ledger.settle(name, "renamed", w.set(path, schedule))
    else:
        ledger.missing(
            f"--{name}",
            "default",
            w.set(path, schedule),
            f"the default of `{program.name}`; ours is constant",
        )
    steps = "warmup_steps" if program.backend == "swift" else "lr_warmup_iters"
    share = "warmup_ratio" if program.backend == "swift" else "lr_warmup_fraction"
    value = program.value(steps)
    if program.backend == "swift" and value:
        ledger.settle(share, "needs a decision", "", names.TWO_WARMUPS)
    elif program.value(share) is not None:
        ledger.settle(steps, "dropped", "", f"{share} is given, and counts")
    if steps not in ledger.pending:
        pass
    elif value is not None and 0 < value < 1:
        target = w.set(f"{section}.args.warmup_ratio", value)
        ledger.settle(steps, "re-derived", target, "below 1 it is a share of all steps")
    elif value is not None and value >= 0:
        ledger.settle(steps, "renamed", w.set(f"{section}.warmup_steps", int(value)))
    ledger.settle(steps, "needs a decision", f"{section}.warmup_steps", "not a number of steps: left out")
    if share in ledger.pending and program.value(share) is not None:
        target = w.set(f"{section}.args.{share}", program.value(share))
        why = f"how many steps that is depends on the data; {section}.warmup_steps takes a number"
        ledger.settle(share, "carried over", target, why)


def _swift(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    sharding = program.value("deepspeed")
    if sharding is not None and is_choice(f"{section}.deepspeed", sharding):
        w.carry(ledger, "deepspeed", f"{section}.deepspeed")
    if program.value("gradient_checkpointing") is True:
        ledger.settle("gradient_checkpointing", "carried over", "", f"on unless {section}.recompute is none")
    elif program.value("gradient_checkpointing") is False:
        ledger.settle("gradient_checkpointing", "re-derived", w.set(f"{section}.recompute", "none"))


def _megatron(w: ConfigWriter, section: str, program: Program, ledger: Ledger) -> None:
    layout = batch.layout_of(program)
    sizes = {
        "tensor": layout.tp,
        "pipeline": layout.pp,
        "context": layout.cp,
        "expert": layout.ep,
        "expert_tensor": layout.etp,
    }
    for (key, size), name in zip(sizes.items(), batch.LAYOUT, strict=True):
        if size > 1 or key == "tensor":
            w.set(f"{section}.parallel.{key}", size)
        ledger.settle(name, "renamed", f"{section}.parallel.{key}: {size}")
    granularity = program.value("recompute_granularity")
    if granularity is not None:
        ledger.settle("recompute_granularity", "renamed", w.set(f"{section}.recompute", granularity))
    if (program.value("recompute_method"), program.value("recompute_num_layers")) == ("uniform", 1):
        w.drop(ledger, "always so with recompute: full", "recompute_method", "recompute_num_layers")
    for name in ("mcore_model", "mcore_adapter"):
        why = "stage convert_to_mcore makes the Megatron weights from model.path: are they the same?"
        ledger.settle(name, "needs a decision", "model.path", why)


def pass_on_the_rest(w: ConfigWriter, section: str, ledger: Ledger) -> None:
    """What no rule above has taken: set by the workflow, a default, or passed through `args`."""
    program = ledger.program
    own = catalogue().arguments(program.name)
    for name, given in list(ledger.pending.items()):
        path = f"{section}.args.{name}"
        gates = gated_arguments(program.name, {name: given.value}, VERSION) if given.usable else []
        if name in OURS:
            ledger.settle(name, "dropped", "", OURS[name])
        elif given.secret:
            ledger.settle(name, "dropped", "", SECRET)
        elif gates:
            outcome: Outcome = "dropped" if gates[0].status == "ignored" else "needs a decision"
            ledger.settle(name, outcome, "", f"`{program.name}`: {gates[0].why}")
        elif given.usable and given.value == own[name].default:
            ledger.settle(name, "carried over", "", f"the default of `{program.name}`: needs no line")
        elif given.usable:
            w.pass_on(ledger, name, section, given.value)
        else:
            ledger.settle(name, "needs a decision", path)


def _is_hub_name(model: str) -> bool:
    """Whether this looks like a name on a hub rather than a path."""
    return not model.startswith(("/", ".", "~", "$")) and not model.endswith("/") and model.count("/") <= 1


def _doubt_about(files: list[str]) -> str:
    """What speaks against taking the first of these as a data set of the configuration; "" for nothing."""
    if len(files) > 1:
        return f"one file: join it with {', '.join(files[1:])}"
    dataset = files[0]
    if PurePosixPath(dataset).suffix.lower() in READERS and "#" not in dataset:
        return ""
    formats = ", ".join(READERS)
    return f"a file ({formats}) or a directory of them: write a name on a hub, or a #sample, to one first"
