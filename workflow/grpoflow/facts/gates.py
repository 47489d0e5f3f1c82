"""What each release of ms-swift does with a feature, and which packages it needs around it.

Some arguments are accepted and then ignored, refused after minutes of start-up, or do the wrong thing in a
given release. `version_gates.json` says so per feature with its evidence; the functions here look it up.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from grpoflow.facts.arguments import FACTS, argument_words
from grpoflow.facts.versions import VersionError, meets, parse_release

Status = Literal["supported", "ignored", "refused", "broken", "absent"]


@dataclass(frozen=True)
class GateStatus:
    """The state of one feature in one release.

    status: "supported"; "ignored" (accepted without effect); "refused" (an error, or no such argument);
    "broken" (runs and does the wrong thing); "absent" (no argument asks for it, the release does not do it).
    assumed: the release is newer than every one that was examined, and the last known state is given.
    """

    feature: str
    version: str
    status: Status
    arguments: tuple[str, ...]
    since: str
    why: str
    evidence: str
    assumed: bool


@dataclass(frozen=True)
class PackageBound:
    """Versions of a package that go with a release of ms-swift.

    requires: specifier that ms-swift, or a package named in the evidence, declares or checks. qwen3_5: what
    Qwen3.5 needs on top. recommended: one consistent set for sm80 GPUs, "" if any will do.
    """

    package: str
    requires: str
    qwen3_5: str
    recommended: str
    note: str
    evidence: str

    def allows(self, version: str) -> bool:
        """Whether both specifiers are met. Raises VersionError for text that is not a version."""
        return meets(version, self.requires) and meets(version, self.qwen3_5)


def features() -> tuple[str, ...]:
    """Names of the features that `status` knows."""
    return tuple(gate["feature"] for gate in _gates()["gates"])


def status(feature: str, version: str) -> GateStatus:
    """The state of a feature in an ms-swift release.

    Raises KeyError for an unknown feature and VersionError for a release older than 4.0.0.
    """
    for gate in _gates()["gates"]:
        if gate["feature"] == feature:
            return _status(gate, version)
    near = difflib.get_close_matches(feature, features(), n=3)
    raise KeyError(f"no feature {feature!r}; {' or '.join(near) if near else ', '.join(features())}")


def gated_arguments(command: str, args: Mapping[str, object], version: str) -> list[GateStatus]:
    """States other than "supported" of the features that these arguments of a command ask for.

    ``args`` maps names to configured values; a value that leaves the feature off (async_generate: false) does
    not count. Meant for GRPO command lines: some rows do not hold for other algorithms.
    """
    found = []
    for gate in _gates()["gates"]:
        names = gate["arguments"]
        harmless = [argument_words(value) for value in gate["harmless"]]
        asked = [
            name
            for name in names
            if args.get(name) is not None and argument_words(args[name]) not in harmless
        ]
        if names and command in gate["commands"] and len(asked) == len(names):
            state = _status(gate, version)
            if state.status != "supported":
                found.append(state)
    return found


def package_bounds(ms_swift_version: str) -> tuple[PackageBound, ...]:
    """Packages around a release of ms-swift. Raises VersionError for one without data."""
    data = json.loads((FACTS / "package_bounds.json").read_text(encoding="utf-8"))
    if ms_swift_version not in data or ms_swift_version == "about":
        known = ", ".join(key for key in data if key != "about")
        raise VersionError(f"no package bounds for ms-swift {ms_swift_version}; known: {known}")
    return tuple(PackageBound(**row) for row in data[ms_swift_version])


@lru_cache(maxsize=1)
def _gates() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FACTS / "version_gates.json").read_text(encoding="utf-8"))
    return data


def _status(gate: Mapping[str, Any], version: str) -> GateStatus:
    wanted = parse_release(version)
    rows = [row for row in gate["rows"] if parse_release(row["since"]) <= wanted]
    if not rows:
        raise VersionError(f"ms-swift {version} is older than {_gates()['oldest']}, the oldest one examined")
    return GateStatus(
        feature=gate["feature"],
        version=version,
        arguments=tuple(gate["arguments"]),
        assumed=wanted > parse_release(_gates()["newest"]),
        **rows[-1],
    )
