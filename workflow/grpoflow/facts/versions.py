"""Version numbers of released packages: parsing and specifiers, as far as the data files use them."""

import operator
import re
from collections.abc import Callable

Release = tuple[int, int, int, int]

_COMPARE: dict[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class VersionError(ValueError):
    """A text that is not a version number, or a version that the data files say nothing about."""


def parse_release(version: str) -> Release:
    """Comparable form of a version: "4.6" and "4.6.0" → (4, 6, 0, 0). A suffix (rc1, .dev0, +cpu) is dropped.

    Raises VersionError for a text that does not start with a number.
    """
    found = re.match(r"v?(\d+(?:\.\d+){0,3})", version.strip())
    if not found:
        raise VersionError(f"{version!r} is not a version number such as 4.6.0")
    first, second, third, fourth, *_ = [*map(int, found[1].split(".")), 0, 0, 0]
    return first, second, third, fourth


def meets(version: str, specifier: str) -> bool:
    """Whether ``version`` meets ``specifier``, for example ">=4.33,<5.20.0"; an empty one is always met.

    Pre-releases count as the release itself, as clusters often run them. Raises VersionError for text that is
    neither.
    """
    wanted = parse_release(version)
    for clause in filter(None, specifier.split(",")):
        found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*([\w.+]+)\s*", clause)
        if not found:
            raise VersionError(f"{clause!r} is not a version specifier such as >=4.33")
        if not _COMPARE[found[1]](wanted, parse_release(found[2])):
            return False
    return True
