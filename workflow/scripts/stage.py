"""The script of every rule: hands the job that Snakemake describes to the package."""

import sys

from grpoflow.stages.main import run

sys.exit(run(snakemake))  # noqa: F821 - injected by Snakemake
