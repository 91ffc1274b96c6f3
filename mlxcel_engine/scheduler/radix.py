"""A radix tree over tokens, as SGLang's RadixAttention has it, whose nodes hold KV. No MLX.

Two kinds of storage, two kinds of tree. Where KV can be divided, a node holds that of the tokens of its own edge, so
a common prefix is held once, and any prefix (of whole granules) can be had from a longer one. Where it cannot (a ring,
a recurrent state), a node holds that of everything from the root to its end, and only that exact prefix can be had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlxcel_engine.engine.kv.store import DetachedKv

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """The edge ``tokens`` from ``parent``, and the KV at its end, if any; ``used`` is when it was last asked for."""

    tokens: Tokens
    parent: Node | None = None
    kv: DetachedKv | None = None
    nbytes: int = 0
    used: int = 0
    pins: int = 0
    children: dict[Tokens, Node] = field(default_factory=dict)

    @property
    def path(self) -> list[Node]:
        """From the first node below the root to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def depth(self) -> int:
        """Tokens from the root to the end of this node."""
        return sum(len(node.tokens) for node in self.path)


class RadixTree:
    """Prefixes by their tokens, a tree for each key. What is pinned, or leads to what is pinned, is not evicted."""

    def __init__(self, granule: int, divisible: bool) -> None:
        """Match in whole multiples of ``granule`` tokens; ``divisible`` tells what a node holds."""
        self.nbytes = 0
        self._granule = granule
        self._divisible = divisible
        self._roots: dict[str, Node] = {}
        self._clock = 0

    def whole(self, tokens: int) -> int:
        """``tokens`` rounded down to whole granules."""
        return tokens - tokens % self._granule

    def matched(self, key: str, tokens: Tokens) -> int:
        """How many of ``tokens`` can be had, at most; what leads there counts as used."""
        node, inside, done = self._walk(key, tokens)
        self._touch(node)
        if self._divisible:
            return done
        found = self._holder(node, inside)
        return found.depth if found is not None else 0

    def find(self, key: str, tokens: Tokens) -> Node | None:
        """Return the node that ends where the longest prefix of ``tokens`` does that can be had, cut if need be."""
        node, inside, _ = self._walk(key, tokens)
        if self._divisible and inside < len(node.tokens):
            node = self._cut(node, inside)
        found = node if self._divisible else self._holder(node, inside)
        if found is None or found.parent is None:
            return None
        self._touch(found)
        return found

    def insert(self, key: str, tokens: Tokens, make: Callable[[int], DetachedKv]) -> Node | None:
        """Hold ``tokens`` (whole granules), if they are not held yet; None if they were.

        ``make(start)`` gives the KV of the tokens from ``start``: where the tree's own end, or 0 if not divisible.
        """
        root = self._roots.setdefault(key, Node(()))
        node, inside, done = self._walk(key, tokens)
        if inside < len(node.tokens) and (done < len(tokens) or not self._divisible):
            node = self._cut(node, inside)
        self._touch(node)
        if done == len(tokens) and (self._divisible or node.kv is not None or node is root):
            return None
        kv = make(done if self._divisible else 0)
        if done < len(tokens):
            edge = tokens[done:]
            child = Node(edge, node)
            node.children[edge[: self._granule]] = child
            node = child
        node.kv, node.nbytes = kv, kv.nbytes
        self.nbytes += node.nbytes
        self._touch(node)
        return node

    def evict(self) -> int | None:
        """Release the KV that was not used for the longest time; the bytes that it had, None if all is in use."""
        free = [node for node in self._nodes() if node.kv is not None and not node.pins]
        free = [node for node in free if not (self._divisible and node.children)]
        if not free:
            return None
        node = min(free, key=lambda node: node.used)
        freed = node.nbytes
        self._release(node)
        self._prune(node)
        return freed

    def clear(self) -> None:
        """Release everything, pinned or not."""
        for node in list(self._nodes()):
            self._release(node)
        self._roots.clear()

    def _walk(self, key: str, tokens: Tokens) -> tuple[Node, int, int]:
        """Follow ``tokens``: the last node reached, how far into its edge, and how many tokens that are in all."""
        node, inside, done = self._roots.get(key, Node(())), 0, 0
        while inside == len(node.tokens):
            child = node.children.get(tokens[done : done + self._granule])
            if child is None:
                break
            node, inside = child, self._common(child.tokens, tokens[done : done + len(child.tokens)])
            done += inside
        return node, inside, done

    def _common(self, one: Tokens, two: Tokens) -> int:
        """Tokens in common at the beginning, in whole granules."""
        if one == two:
            return len(one)
        pairs = enumerate(zip(one, two, strict=False))
        return self.whole(next((index for index, (a, b) in pairs if a != b), min(len(one), len(two))))

    def _holder(self, node: Node, inside: int) -> Node | None:
        """The last node on the way that holds KV and was passed to its end."""
        nodes = node.path if inside == len(node.tokens) else node.path[:-1]
        return next((node for node in reversed(nodes) if node.kv is not None), None)

    def _cut(self, node: Node, at: int) -> Node:
        """Divide an edge; ``node`` keeps its end, and its pins, and the new node before it is returned."""
        parent = node.parent
        assert parent is not None  # the root's edge is empty, it is never cut
        front = Node(node.tokens[:at], parent, used=node.used)
        if self._divisible and node.kv is not None:
            whole, length = node.kv, len(node.tokens)
            first, rest = whole.part(0, at), whole.part(at, length)
            whole.release()
            self.nbytes += first.nbytes + rest.nbytes - node.nbytes
            front.kv, front.nbytes, node.kv, node.nbytes = first, first.nbytes, rest, rest.nbytes
        parent.children[front.tokens[: self._granule]] = front
        node.tokens, node.parent = node.tokens[at:], front
        front.children[node.tokens[: self._granule]] = node
        return front

    def _touch(self, node: Node) -> None:
        self._clock += 1
        for passed in node.path:
            passed.used = self._clock

    def _release(self, node: Node) -> None:
        if node.kv is not None:
            node.kv.release()
            self.nbytes -= node.nbytes
            node.kv, node.nbytes = None, 0

    def _prune(self, node: Node) -> None:
        """Remove what holds nothing and leads nowhere; join an edge that only leads on to the one behind it."""
        while node.parent is not None and node.kv is None and len(node.children) < 2 and not node.pins:
            parent, first = node.parent, node.tokens[: self._granule]
            if node.children:
                (child,) = node.children.values()
                child.tokens, child.parent = node.tokens + child.tokens, parent
                parent.children[first] = child
                return
            del parent.children[first]
            node = parent
        if node.parent is None and not node.children:
            self._roots = {key: root for key, root in self._roots.items() if root is not node}

    def _nodes(self) -> Iterator[Node]:
        pending = [child for root in self._roots.values() for child in root.children.values()]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node
