"""Keys that a file gives twice, and aliases that hold themselves: PyYAML takes both without a word."""

from __future__ import annotations

from collections.abc import Iterator

import yaml


def faults_of_yaml(text: str) -> Iterator[tuple[str, str]]:
    """Key and reason of every such fault.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        yield from _faults(root, "", (), set())


def _faults(
    node: yaml.Node, path: str, above: tuple[yaml.Node, ...], seen: set[int]
) -> Iterator[tuple[str, str]]:
    if any(node is one for one in above):
        yield path, f"holds itself, through the alias in line {above[-1].start_mark.line + 1} or below"
        return
    if id(node) in seen:  # an alias of what was looked at before
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _faults(item, f"{path}[{index}]", (*above, node), seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, list[int]] = {}
        for key, value in node.value:
            name = str(key.value)
            lines.setdefault(name, []).append(key.start_mark.line + 1)
            yield from _faults(value, f"{path}.{name}".lstrip("."), (*above, node), seen)
        for name, at in lines.items():
            if len(at) > 1:
                where = f"{', '.join(map(str, at[:-1]))} and {at[-1]}"
                why = f"given in lines {where}: the last one would replace the others without a word"
                yield f"{path}.{name}".lstrip("."), why
