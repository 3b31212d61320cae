"""The mask of tiles at the edges of a sliding window, for kernels that take a mask and no numbers: every tile's is a part of one band.

        columns ->
row     0 0 0 . . .        0 is added to the scores that a row sees, -inf (.) to the others; window 3, at most 4 rows: [4, 6]
|       . 0 0 0 . .
v       . . 0 0 0 .        a tile of 3 queries and 3 keys, left 2, right 0     rows 0-2, columns 2-4
        . . . 0 0 0        of 3 queries and 4 keys, left 2, right 0            rows 0-2, columns 1-4
"""

from __future__ import annotations

import torch

from rayplane.model.tiles import Tile, strip

Tensor = torch.Tensor


def band(window: int, seq: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to the scores: 0 within the window, else -inf; [rows, rows + window - 1]."""
    rows = min(strip(window), seq)
    inside = torch.ones(rows, rows + window - 1, dtype=torch.bool, device=device).tril_(window - 1).triu_()
    return torch.zeros(inside.shape, dtype=dtype, device=device).masked_fill_(~inside, -torch.inf)


def part(band: Tensor, tile: Tile) -> Tensor | None:
    """A view of the band, [queries, keys] of the tile; None where the window does not bite."""
    if tile.left < 0:
        return None
    rows, columns = (s.stop - s.start for s in (tile.queries, tile.keys))
    return band[:rows, tile.left + rows - columns : tile.left + rows]
