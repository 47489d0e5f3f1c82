"""Activate the stand-ins in an environment: `python -m grpoflow_standins.install SITE_PACKAGES`.

Called by scripts/setup.
"""

from __future__ import annotations

import sys
from pathlib import Path

PTH_NAME = "grpoflow_standins.pth"


def install(site_packages: Path) -> Path:
    """Write the .pth file that makes each interpreter of the environment register the hooks; return it."""
    standins = Path(__file__).resolve().parent.parent
    target = site_packages / PTH_NAME
    temporary = target.with_suffix(".tmp")
    temporary.write_text(f"{standins}\nimport grpoflow_standins; grpoflow_standins.register()\n")
    temporary.rename(target)
    return target


if __name__ == "__main__":
    print(install(Path(sys.argv[1])))
