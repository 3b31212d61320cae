"""Each mesh axis: what it sends, over which link, and whether compute or communication is the longer of the two."""

from __future__ import annotations

from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Axis, Explanation
from rayplane.web.bars import Part, strip
from rayplane.web.markup import Markup, tag
from rayplane.web.sections.parts import block, chip
from rayplane.web.svg import legend
from rayplane.web.table import table
from rayplane.web.units import percent, size

_HEADERS = ("what", "calls a step", "a message", "sent by a rank", "how")
_COLOUR = {"compute": "blue", "hidden behind compute": "grey", "exposed": "vermilion"}


def traffic(explanation: Explanation) -> Markup:
    """The axes of more than one rank."""
    lead = "Bytes come from the shapes, seconds from the link that binds. What compute does not hide is exposed, and costs time."
    axes = [_axis(axis) for axis in explanation.axes]
    alone = None if axes else tag("p", "All axes have one rank, so nothing is sent.")
    key = legend(_COLOUR.items()) if axes else None
    return block("traffic", "What the axes send", lead, key, axes, alone)


def _axis(axis: Axis) -> Markup:
    full = max(axis.compute_s, axis.comm_s)
    hidden = max(axis.comm_s - axis.exposed_s, 0.0)
    compute = [Part("compute", axis.compute_s, seconds(axis.compute_s))]
    comm = [Part("hidden behind compute", hidden, seconds(hidden)), Part("exposed", axis.exposed_s, seconds(axis.exposed_s))]
    shown = f"{seconds(axis.exposed_s)} exposed, {percent(axis.exposed_s / axis.comm_s)} of its sending" if axis.comm_s else ""
    race = tag(
        "div",
        tag("span", f"compute {seconds(axis.compute_s)}"),
        strip(f"compute {seconds(axis.compute_s)}", compute, full, _COLOUR),
        tag("span", f"sending {seconds(axis.comm_s)}"),
        strip(f"communication {seconds(axis.comm_s)}, {shown}", comm, full, _COLOUR),
        class_="race",
    )
    facts = tag(
        "div",
        tag("h3", f"{axis.name} of {axis.size}"),
        chip(axis.bound, f"{axis.bound}-bound"),
        tag("span", f"over the {axis.link}, {axis.gbytes_s:,.4g} GB/s a rank", class_="soft small"),
        tag("span", shown, class_="soft small"),
        class_="axis-facts",
    )
    rows = ((t.what, f"{t.calls:,.6g}", size(t.message_bytes), size(t.sent_bytes), t.arithmetic) for t in axis.traffic)
    sums = table(f"What a rank of {axis.name} sends in a step", _HEADERS, rows, words=(0, 4)) if axis.traffic else None
    return tag("div", facts, race, tag("p", axis.arithmetic, class_="sum"), sums, class_="axis-card")
