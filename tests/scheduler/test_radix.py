"""The radix tree alone, against a plain list of what it should hold; its KV is a tuple of the tokens it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxcel_engine.scheduler.radix import Node, RadixTree, Tokens

LIVE: list[FakeKv] = []


@dataclass(eq=False)
class FakeKv:
    """KV that says what it is of."""

    of: Tokens
    released: bool = False

    def __post_init__(self) -> None:
        LIVE.append(self)

    @property
    def tokens(self) -> int:
        return len(self.of)

    @property
    def nbytes(self) -> int:
        return 10 * len(self.of)

    def part(self, start: int, stop: int) -> FakeKv:
        assert not self.released
        return FakeKv(self.of[start:stop])

    def joined(self, others: Sequence[Any]) -> FakeKv:
        return FakeKv(sum((other.of for other in others), self.of))

    def release(self) -> None:
        assert not self.released, "released twice"
        self.released = True
        LIVE.remove(self)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
KEYS = st.sampled_from(("", "other"))


def common(one: Tokens, two: Tokens) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


class Tree(RuleBasedStateMachine):
    """A tree beside ``held``: what was stored, by when it was used, and ``pinned`` nodes."""

    @initialize(granule=st.sampled_from((1, 2, 4)), divisible=st.booleans())
    def begin(self, granule: int, divisible: bool) -> None:
        LIVE.clear()
        self.granule, self.divisible = granule if divisible else 1, divisible
        self.tree = RadixTree(self.granule, divisible)
        self.held: set[tuple[str, Tokens]] = set()
        self.pinned: list[tuple[str, Tokens, Node]] = []

    def whole(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) - len(tokens) % self.granule]

    def expected(self, key: str, tokens: Tokens) -> int:
        """The longest prefix of ``tokens`` that can be had."""
        mine = [held for k, held in self.held if k == key]
        if not self.divisible:
            return max((len(held) for held in mine if tokens[: len(held)] == held), default=0)
        longest = max((common(held, tokens) for held in mine), default=0)
        return longest - longest % self.granule

    @rule(key=KEYS, tokens=TOKENS)
    def stores(self, key: str, tokens: Tokens) -> None:
        tokens = self.whole(tokens)
        if not tokens:
            return
        known = self.expected(key, tokens)
        node = self.tree.insert(key, tokens, lambda start: FakeKv(tokens[start:]))
        assert (node is None) == (known == len(tokens))
        self.held.add((key, tokens))

    @rule(key=KEYS, tokens=TOKENS, pin=st.booleans())
    def finds(self, key: str, tokens: Tokens, pin: bool) -> None:
        expected = self.expected(key, tokens)
        assert self.tree.matched(key, tokens) == expected
        node = self.tree.find(key, tokens)
        assert (node.depth if node else 0) == expected
        if node is None:
            return
        kvs = [passed.kv for passed in node.path if passed.kv is not None] if self.divisible else [node.kv]
        assert sum((kv.of for kv in kvs if isinstance(kv, FakeKv)), ()) == tokens[:expected]
        if pin and len(self.pinned) < 3:
            node.pins += 1
            self.pinned.append((key, tokens[:expected], node))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def lets_go(self, data: st.DataObject) -> None:
        self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))[2].pins -= 1

    @rule()
    def evicts(self) -> None:
        nodes = [node for node in self.tree._nodes() if node.kv is not None]
        free = [n for n in nodes if not n.pins and not (self.divisible and n.children)]
        oldest = min(free, key=lambda node: node.used, default=None)
        before, where = self.tree.nbytes, self.place(oldest) if oldest else None
        freed = self.tree.evict()
        assert (freed is None) == (oldest is None)
        if freed is None or where is None or oldest is None:
            return
        assert freed == before - self.tree.nbytes > 0
        key, path = where
        if not self.divisible:
            self.held.remove((key, path))
            return
        gone = {(k, tokens) for k, tokens in self.held if k == key and tokens[: len(path)] == path}
        shorter = path[: len(path) - len(oldest.tokens)]  # what leads there stays
        self.held = (self.held - gone) | ({(key, shorter)} if shorter else set())
        cut = {(k, tokens) for k, tokens in self.held if k == key and path[: len(tokens)] == tokens}
        self.held -= {(k, tokens) for k, tokens in cut if len(tokens) > len(shorter)}

    def place(self, node: Node) -> tuple[str, Tokens]:
        """The key and all the tokens from the root to the end of ``node``."""
        root = node.path[0].parent
        key = next(key for key, found in self.tree._roots.items() if found is root)
        return key, sum((passed.tokens for passed in node.path), ())

    @invariant()
    def pinned_prefixes_stay(self) -> None:
        for key, tokens, _ in getattr(self, "pinned", []):
            assert self.tree.matched(key, tokens) == len(tokens)

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "tree"):
            return
        nodes = list(self.tree._nodes())
        assert self.tree.nbytes == sum(kv.nbytes for kv in LIVE)
        assert {id(node.kv) for node in nodes if node.kv is not None} == {id(kv) for kv in LIVE}
        for node in nodes:
            assert node.tokens
            assert len(node.tokens) % self.granule == 0
            assert node.parent is not None
            assert node.parent.children[node.tokens[: self.granule]] is node
            if self.divisible:
                assert isinstance(node.kv, FakeKv)
                assert node.kv.of == node.tokens
            else:
                assert node.kv is not None or node.children
        if not self.pinned and not nodes:
            assert self.tree.nbytes == 0

    def teardown(self) -> None:
        if hasattr(self, "tree"):
            self.tree.clear()
            assert LIVE == []


Tree.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestTree = Tree.TestCase


def behind(tokens: Tokens, start: int) -> FakeKv:
    return FakeKv(tokens[start:])


def stored(*prefixes: Tokens, divisible: bool = True) -> RadixTree:
    LIVE.clear()
    tree = RadixTree(1, divisible)
    for tokens in prefixes:
        tree.insert("", tokens, partial(behind, tokens))
    return tree


def test_what_is_in_use_is_not_evicted_and_the_least_recently_used_goes_first() -> None:
    tree = stored((1, 2, 3), (1, 2, 4), (5, 6))
    node = tree.find("", (5, 6))
    assert node is not None
    node.pins += 1
    assert tree.find("", (1, 2, 3)) is not None
    tree.evict()
    assert tree.matched("", (1, 2, 4)) == 2
    assert tree.matched("", (1, 2, 3)) == 3
    while tree.evict():
        pass
    assert tree.matched("", (5, 6)) == 2
    assert tree.nbytes == node.nbytes


def test_an_exact_tree_gives_no_shorter_prefix_of_what_it_holds() -> None:
    tree = stored((1, 2, 3, 4), divisible=False)
    assert tree.matched("", (1, 2, 3)) == 0
    assert tree.find("", (1, 2, 3, 4, 5)) is not None
    assert tree.find("", (1, 2, 9)) is None


def test_keys_are_apart() -> None:
    assert stored((1, 2)).matched("other", (1, 2)) == 0


def test_a_make_that_fails_leaves_the_tree_as_it_was() -> None:
    tree = stored((1, 2, 3))

    def fails(start: int) -> FakeKv:
        raise MemoryError

    with pytest.raises(MemoryError):
        tree.insert("", (1, 2, 9), fails)
    assert tree.matched("", (1, 2, 3)) == 3
    assert tree.matched("", (1, 2, 9)) == 2
