"""The environment of external programs: nothing plus a whitelist.

A leaked NPROC_PER_NODE or NNODES makes `swift` start torchrun where none is wanted (swift/cli/main.py:71-80),
and a leaked SLURM_* makes a nested srun or torch believe that it is another job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from grpoflow.config import Config

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME"),  # set by environment modules on many clusters
    "CUDA_VISIBLE_DEVICES",  # the GPUs that Slurm gave to a stage; the roles of the RL job set their own
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("WANDB_API_KEY", "SWANLAB_API_KEY", "HF_TOKEN", "MODELSCOPE_API_TOKEN"),  # secrets: environment only
)


def clean_environment(config: Config, outer: Mapping[str, str]) -> dict[str, str]:
    """Build the environment that every program of the training environment starts from."""
    cluster = config.cluster
    environment = {name: outer[name] for name in PASSED_ON if name in outer}
    path = outer.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    environment["PATH"] = f"{Path(cluster.environment).absolute() / 'bin'}:{path}"
    # one cache for all nodes: without it every node maps the data set by itself and they can disagree
    environment["MODELSCOPE_CACHE"] = str(Path(cluster.cache).absolute() / "modelscope")
    environment["TOKENIZERS_PARALLELISM"] = "false"  # forked data workers deadlock otherwise
    environment["PYTHONUNBUFFERED"] = "1"  # a killed program leaves its last lines in the log
    # trl 0.29.1 (_compat.py:83) turns it down to errors: an engine that preempts requests then says nothing
    environment["VLLM_LOGGING_LEVEL"] = "INFO"
    if config.data.image_max_tokens is not None:
        environment["IMAGE_MAX_TOKEN_NUM"] = str(config.data.image_max_tokens)
    return environment | dict(cluster.env)
