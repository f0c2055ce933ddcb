"""Telling apart values that contain each other, by what can be seen from each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

Signature: TypeAlias = tuple[bytes, ...]


def colours(
    labels: Sequence[bytes], edges: Sequence[Sequence[int]], loose: Sequence[bool], mix: Callable[[object], bytes]
) -> list[bytes]:
    """A colour for each node of a graph, equal for two nodes if and only if no walk from them sees a difference.

    A node is seen by its label; its edges are in order unless it is `loose`. Nodes of one colour that see different
    colours are told apart; those that see what the colour stands for keep it, so that, of a long chain, only the
    links near the news are looked at again. Each decision depends on what is seen and never on how many nodes see
    it, hence shared and copied parts get the same colours.
    """
    found, size, meaning = list(labels), Counter(labels), dict[bytes, Signature]()
    back: list[list[int]] = [[] for _ in labels]
    for node, others in enumerate(edges):
        for other in others:
            back[other].append(node)

    def seen_by(node: int) -> Signature:
        sees = [found[other] for other in edges[node]]
        return tuple(sorted(sees) if loose[node] else sees)

    touched: Iterable[int] = range(len(labels))
    while touched:
        groups: dict[bytes, dict[Signature, list[int]]] = {}
        for node in touched:
            groups.setdefault(found[node], {}).setdefault(seen_by(node), []).append(node)
        changed: list[int] = []
        for colour, views in groups.items():
            if size[colour] > sum(map(len, views.values())):  # the untouched ones see what they always saw
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
