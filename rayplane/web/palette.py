"""Which colour stands for what: after Okabe and Ito, whose eight are told apart by colour-blind readers too.

compute F weights         blue        p2p                sky
tp B activations          vermilion   optimizer O        yellow
cp W gradients            green       bubble fixed       grey
dp R I logits             purple      anything else      by its place
"""

from __future__ import annotations

from collections.abc import Iterable

from rayplane.spec.schedule import Op

COLOURS = ("blue", "vermilion", "green", "purple", "sky", "yellow", "grey")
_NAMED = {
    "compute": "blue",
    "step": "blue",
    "tp": "vermilion",
    "cp": "green",
    "dp": "purple",
    "p2p": "sky",
    "optimizer": "yellow",
    "bubble": "grey",
    "weights": "blue",
    "gradients": "green",
    "activations": "vermilion",
    "logits": "purple",
    "fixed": "grey",
}
_OF_OP = {
    Op.FORWARD: "blue",
    Op.BACKWARD: "vermilion",
    Op.INPUT_GRAD: "vermilion",
    Op.WEIGHT_GRAD: "green",
    Op.REDUCE: "purple",
    Op.STEP: "yellow",
}


def colour_of_op(op: Op) -> str:
    """Of an Action in a timeline; transfers are all alike."""
    return _OF_OP.get(op, "sky")


def colours(names: Iterable[str]) -> dict[str, str]:
    """Of terms that are drawn together; those that have no colour of their own take the ones that are left."""
    out: dict[str, str] = {}
    listed = list(dict.fromkeys(names))
    taken = {_NAMED[name] for name in listed if name in _NAMED}
    left = [c for c in COLOURS if c not in taken] or list(COLOURS)
    for name in listed:
        out[name] = _NAMED.get(name) or left[sum(n not in _NAMED for n in out) % len(left)]
    return out
