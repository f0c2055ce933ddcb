"""Distinguishes values that contain each other, by what can be reached from each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

Signature: TypeAlias = tuple[bytes, ...]


def colours(
    labels: Sequence[bytes], edges: Sequence[Sequence[int]], loose: Sequence[bool], mix: Callable[[object], bytes]
) -> list[bytes]:
    """A colour for each node of a graph: equal for two nodes if and only if no walk from them finds a difference.

    A walk sees the labels of nodes and the order of their edges, unless a node is `loose`. Nodes of one colour whose
    neighbours differ in colour are split. The group whose view (neighbours' colours) the colour stands for keeps it, so
    that in a long chain only nodes near a change are examined again. Decisions depend on views and never on how many
    nodes have them, so shared and copied parts get the same colours.
    """
    found, size, meaning = list(labels), Counter(labels), dict[bytes, Signature]()
    back: list[list[int]] = [[] for _ in labels]
    for node, others in enumerate(edges):
        for other in others:
            back[other].append(node)

    def view_of(node: int) -> Signature:
        neighbours = [found[other] for other in edges[node]]
        return tuple(sorted(neighbours) if loose[node] else neighbours)

    touched: Iterable[int] = range(len(labels))
    while touched:
        groups: dict[bytes, dict[Signature, list[int]]] = {}
        for node in touched:
            groups.setdefault(found[node], {}).setdefault(view_of(node), []).append(node)
        changed: list[int] = []
        for colour, views in groups.items():
            if size[colour] > sum(map(len, views.values())):  # the untouched nodes still have the old view
                views.setdefault(meaning[colour], [])
            if meaning.get(colour) not in views:
                meaning[colour] = min(views)
            for view in [view for view in views if view != meaning[colour]]:
                new = mix((colour, view))
                meaning[new], size[new] = view, len(views[view])
                size[colour] -= size[new]
                for node in views[view]:
                    found[node] = new
                changed += views[view]
        touched = {node for other in changed for node in back[other]}
    return found
