"""The multipliers of a step's terms, as observed of jobs, applied to what is priced.

compute   everything a chunk computes                 tp, cp   what a microbatch waits for over them
host      launches                                    dp       reductions, gathered weights, a tied embedding
                                                      p2p      from stage to stage
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.step.compute import NONE, Seconds
from rayplane.plan.step.draft import Stages
from rayplane.plan.step.pieces import Piece, Pieces
from rayplane.spec.profile import Profile


@dataclass(frozen=True, slots=True)
class Terms:
    """How many times as long each term takes as predicted."""

    compute: float = 1.0
    tp: float = 1.0
    dp: float = 1.0
    cp: float = 1.0
    p2p: float = 1.0
    host: float = 1.0


TERMS = tuple(f.name for f in fields(Terms))
SAME = Terms()


def terms_of(profile: Profile | None) -> Terms:
    """Those that a profile holds."""
    return Terms(**{factor.term: factor.value for factor in profile.correction}) if profile else SAME


def launching(kind: DeviceKind, terms: Terms) -> DeviceKind:
    """The device with its launches; `compute`, which comes on top of all a chunk takes, is taken off them."""
    return replace(kind, launch_us=kind.launch_us * terms.host / terms.compute)


def in_chunks(of: Pieces, terms: Terms) -> Pieces:
    """What microbatches take."""
    if terms == SAME:
        return of
    layer, again, embed, head = (_piece(piece, terms) for piece in (of.layer, of.again, of.embed, of.head))
    return Pieces(layer, again, embed, head)


def between_ranks(stages: Stages, terms: Terms) -> Stages:
    """What stages and replicas tell each other."""
    if terms == SAME:
        return stages
    return replace(
        stages,
        dp=tuple(_times(s, terms.dp) for s in stages.dp),
        p2p_s=tuple(terms.p2p * s for s in stages.p2p_s),
        reduce_s=tuple(terms.dp * s for s in stages.reduce_s),
        sync_s=terms.dp * stages.sync_s,
    )


def _piece(piece: Piece, terms: Terms) -> Piece:
    return Piece(_times(piece.compute, terms.compute), _times(piece.tp, terms.tp), _times(piece.cp, terms.cp))


def _times(seconds: Seconds, factor: float) -> Seconds:
    return NONE.plus(seconds, factor)
