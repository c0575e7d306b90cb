"""PyYAML's safe loader, which refuses text whose aliases stand for far more than it holds."""

from __future__ import annotations

from typing import Final

import yaml

_MOST: Final = 10_000


class BoundedLoader(yaml.SafeLoader):
    """A safe loader of files that others may have written.

    Anchors and aliases in 400 bytes of YAML can stand for a million values, each of which a reader would look at.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Return the document's node. Raises: yaml.YAMLError where aliases stand for more than 10,000 nodes."""
        node = super().get_single_node()
        if node is not None:
            sizes: dict[int, int] = {}
            if _size(node, sizes) - len(sizes) > _MOST:
                raise yaml.MarkedYAMLError(
                    problem=f"its aliases stand for more than {_MOST:,} values", problem_mark=node.start_mark
                )
        return node


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many nodes a node stands for; what an alias repeats counts each time, a cycle once."""
    if id(node) not in sizes:
        sizes[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]
