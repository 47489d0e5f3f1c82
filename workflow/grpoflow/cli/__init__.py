"""The commands that people type. Each subcommand imports what it needs when it is used."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

CONFIG_HELP = "configuration files, merged in order as Snakemake does with several --configfile"
REFUSED, USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit code: 0 fine, 1 refused, 2 usage."""
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def parser() -> argparse.ArgumentParser:
    """The command line of `grpoflow`."""
    top = argparse.ArgumentParser(prog="grpoflow", description=__doc__.split(".")[0] if __doc__ else None)
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    preflight = commands.add_parser(
        "preflight", help="check a configuration: exit 0 fine, 1 refused, 2 usage"
    )
    _add_config(preflight)
    preflight.add_argument(
        "--data", action="store_true", help="also read the data and try the reward functions"
    )
    preflight.add_argument(
        "--checkpoint", action="store_true", help="also look at the files of the checkpoint"
    )
    preflight.set_defaults(run=_preflight)

    plan = commands.add_parser("plan", help="batch, layout, placement, memory, cost and every command line")
    _add_config(plan)
    plan.add_argument("--experiment", metavar="NAME", help="one of the experiments; all by default")
    plan.add_argument(
        "--sbatch",
        action="store_true",
        help="print the script of the RL job that would be submitted, and what sbatch --test-only says to it",
    )
    plan.add_argument(
        "--profile",
        type=Path,
        default=Path("slurm"),
        metavar="PROFILE",
        help="with --sbatch: the Snakemake profile whose resources the job gets (slurm by default)",
    )
    plan.set_defaults(run=_plan)

    doctor = commands.add_parser("doctor", help="say why a run is slow or dead, from its logs and metrics")
    doctor.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="run directories or log files")
    _add_format(doctor)
    doctor.set_defaults(run=_doctor)

    translate = commands.add_parser(
        "translate", help="make a configuration of a launch script, or the script for the other backend"
    )
    translate.add_argument("script", type=Path, metavar="SCRIPT", help="bash script with swift or megatron")
    translate.add_argument(
        "--to", choices=("config", "megatron", "swift"), default="config", help="config by default"
    )
    _add_format(translate)
    translate.set_defaults(run=_translate)

    status = commands.add_parser("status", help="what the RL jobs of this directory do: exit 2 if none")
    _add_experiment(status)
    _add_format(status)
    status.set_defaults(run=_status)

    cancel = commands.add_parser("cancel", help="end the RL jobs of this directory, and wait for it")
    _add_experiment(cancel)
    cancel.set_defaults(run=_cancel)
    return top


def _add_experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="all by default")


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", nargs="+", type=Path, metavar="CONFIG", help=CONFIG_HELP)
    _add_format(command)


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for people (default)"
    )


def _preflight(arguments: argparse.Namespace) -> int:
    from .preflight import run  # noqa: PLC0415 - a subcommand pays for its own imports only

    return run(arguments.config, arguments.format, data=arguments.data, checkpoint=arguments.checkpoint)


def _plan(arguments: argparse.Namespace) -> int:
    from .plan import run, sbatch  # noqa: PLC0415

    if arguments.sbatch:
        return sbatch(arguments.config, arguments.experiment, arguments.profile)
    return run(arguments.config, arguments.format, arguments.experiment)


def _doctor(arguments: argparse.Namespace) -> int:
    from grpoflow.doctor import main as doctor  # noqa: PLC0415

    code: int = doctor(arguments.paths, arguments.format)
    return code


def _translate(arguments: argparse.Namespace) -> int:
    from grpoflow.translate import main as translate  # noqa: PLC0415

    return translate(arguments.script, arguments.to, arguments.format)


def _status(arguments: argparse.Namespace) -> int:
    from grpoflow.launch.status import main as status  # noqa: PLC0415

    return status(arguments.experiment, arguments.format)


def _cancel(arguments: argparse.Namespace) -> int:
    from grpoflow.launch.status import cancel  # noqa: PLC0415

    return cancel(arguments.experiment)


def usage(message: str) -> int:
    """Say on standard error what is wrong with the command line; return the exit code."""
    print(f"grpoflow: {message}", file=sys.stderr)
    return USAGE
