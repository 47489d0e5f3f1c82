"""Named checks over the configuration, the plan and, where they are there, the files it names.

Everything here runs on a login node in milliseconds: no torch, no ms-swift, no Snakemake. A check is a
function with the decorator of :mod:`grpoflow.preflight.rules`; the modules group them by topic.
"""

from .report import Problem, Report
from .run import Refused, check, check_raw, refuse_faults

__all__ = ["Problem", "Refused", "Report", "check", "check_raw", "refuse_faults"]
