"""Tiles are the pairs (query, key) that the definition of the mask names, each once, and no more work than that."""

import itertools

import pytest

from rayplane.model import tiles as module
from rayplane.model.tiles import Span, spans, tiles

CASES = {
    "causal": (None, 0),
    "window": (None, 5),
    "window of one": (None, 1),
    "documents": (((0,), (0, 1, 2, 13), (0, 1, 2, 13), (0, 12)), 0),
    "documents under a window": (((0, 9), (0, 3, 17), (0,)), 4),
}
SAMPLES, SEQ = 4, 19


def held(rank, cp):
    """Positions of a rank's rows."""
    return [p for span in spans(SEQ, cp, rank) for p in range(span.first, span.end)]


def pairs(tile, mine, theirs):
    """(sample, query, key) of a tile by position, as its fields define them."""
    queries, keys = mine[tile.queries], theirs[tile.keys]
    for sample in range(SAMPLES)[tile.samples]:
        for (i, q), (j, k) in itertools.product(enumerate(queries), enumerate(keys)):
            distance = j - i - (len(keys) - len(queries))
            if not (tile.left >= 0 and distance < -tile.left) and not (tile.right >= 0 and distance > tile.right):
                yield sample, q, k


def seen(sample, documents, window):
    """The definition: a key of the query's document, not after it, less than a window before it."""
    starts = documents[sample] if documents and sample < len(documents) else (0,)
    document = [max(i for i, start in enumerate(starts) if start <= p) for p in range(SEQ)]
    for q, k in itertools.product(range(SEQ), repeat=2):
        if k <= q and document[k] == document[q] and (not window or q - k < window):
            yield sample, q, k


@pytest.mark.parametrize("cp", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_tiles_cover_each_visible_pair_once_and_no_other(case, cp, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4)
    documents, window = CASES[case]
    num_samples = len(documents) if documents else SAMPLES
    covered, diagonal = [], []
    for rank, source in itertools.product(range(cp), repeat=2):
        mine, theirs = held(rank, cp), held(source, cp)
        found = tiles(spans(SEQ, cp, rank), spans(SEQ, cp, source), documents, window)
        for tile in found:
            inside = list(pairs(tile, mine, theirs))
            covered += inside
            for sample in range(SAMPLES)[tile.samples]:
                assert {q for s, q, _ in inside if s == sample} == set(mine[tile.queries]), "a query sees none of the tile's keys"
                assert {k for s, _, k in inside if s == sample} == set(theirs[tile.keys]), "a key is there for nobody"
                diagonal += [(sample, q) for q in mine[tile.queries] if tile.diagonal]
        assert [t.diagonal for t in found] == sorted((t.diagonal for t in found), reverse=True), "what is merged comes first"
    covered = [pair for pair in covered if pair[0] < num_samples]
    assert len(covered) == len(set(covered))
    assert set(covered) == {pair for sample in range(num_samples) for pair in seen(sample, documents, window)}
    assert sorted(d for d in diagonal if d[0] < num_samples) == [(s, q) for s in range(num_samples) for q in range(SEQ)]


def test_the_picture_in_the_docstring():
    found = tiles([Span(0, 8, 0)], [Span(0, 8, 0)], ((0, 3),), 3)
    assert [(t.queries, t.keys, t.left, t.right) for t in found] == [
        (slice(0, 3), slice(0, 3), -1, 0),
        (slice(3, 8), slice(3, 8), 2, 0),
    ]
    rows = [line[4:].split() for line in module.__doc__.splitlines() if set(line[:4]) <= set("q|v ") and line[4:5] in ("x", ".")]
    drawn = {(q, k) for q, row in enumerate(rows) for k, cell in enumerate(row[:8]) if cell == "x"}
    assert drawn == {(q, k) for t in found for q in range(8)[t.queries] for k in range(8)[t.keys] if k <= q < k + 3}


def work(cp, rank, held_by, window=0, documents=None):
    """Pairs that a rank computes; a tile under a window is computed whole."""
    found = [t for source in range(cp) for t in tiles(held_by(rank), held_by(source), documents, window)]
    areas = [(t.queries.stop - t.queries.start) * (t.keys.stop - t.keys.start) / (2 if t.left < 0 <= t.right else 1) for t in found]
    return sum(areas)


@pytest.mark.parametrize(("cp", "uneven"), [(2, 1.5), (4, 1.75), (8, 1.875)])
def test_zigzag_makes_causal_work_even(cp, uneven):
    """Without it the last rank has 2 - 1 / cp of the mean: the time of all, for the others wait for it."""
    seq = 4096
    pieces = [[Span(r * seq // cp, (r + 1) * seq // cp, 0)] for r in range(cp)]
    in_order = [work(cp, rank, pieces.__getitem__) for rank in range(cp)]
    zigzag = [work(cp, rank, lambda r: spans(seq, cp, r)) for rank in range(cp)]
    most = [max(w) / (sum(w) / cp) for w in (in_order, zigzag)]
    print(f"cp {cp}: the busiest rank has {most[0]:.3f} of the mean work in order, {most[1]:.3f} by zigzag")
    assert most == [pytest.approx(uneven, rel=2e-3), pytest.approx(1.0, rel=2e-3)]


def test_what_lies_outside_of_the_window_or_the_document_is_not_computed():
    seq, cp, window = 8192, 4, 512
    causal, near = (sum(work(cp, r, lambda r: spans(seq, cp, r), w) for r in range(cp)) for w in (0, window))
    assert causal == seq * seq / 2
    assert near < 2 * seq * window
    last = spans(seq, cp, 1), spans(seq, cp, 3)
    assert tiles(*last, None, window) == (), "chunks 1 and 6 are far from 3 and 4"
    apart = ((*range(0, seq, window),),)
    assert sum(work(cp, r, lambda r: spans(seq, cp, r), documents=apart) for r in range(cp)) == seq * window / 2
