"""Seconds of one round of a serving replica, term by term: n tokens through every layer, of them those that get a next token.

weights      each matrix: memory and arithmetic side by side, (m^b + c^b)^(1/b)
                 m = bytes / (share of the bandwidth)       c = 2 · elements · n / (efficiency · peak)
attention    prompts: 4 · width · pairs / (share of peak at the context · peak); decode: bytes of the cache, or its arithmetic
memory       what passes between the matrices
launch       a floor under each kernel; where no graph is replayed, at least the host's launches
tp           sums of [n, hidden]: one shot (p-1)N, two shots 2N(p-1)/p, or the ring of `network`, whichever is quickest
pp, cp, ep   hops between stages; keys and values round a ring; tokens to their experts and back

With pp stages a round is pp batches, a pp-th of the sequences each, one in each stage. With cp a rank has a part of each prompt and of
each cache, and all tokens that decode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.machine.kernels import share_at
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.serving.engine import RAYPLANE, Engine
from rayplane.plan.serving.served import BITS, Cut, Served, part

FORMATS = {"fp32": ("fp32",), "fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16")}
"""In which precision a device multiplies numbers of a format: the first that it has."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What kernels reach of a device: one set for all devices and engines, fitted to published serving runs."""

    read: float = 0.92
    """Share of the memory bandwidth at which a product with few rows reads its weights."""
    read_4bit: float = 0.77
    """The same where they have four bits."""
    cache: float = 0.92
    """The same of attention over paged keys and values."""
    latent: float = 0.5
    """Of peak, the same where many heads share one latent vector and arithmetic binds; assumed."""
    between: float = 0.75
    """The same of element-wise kernels."""
    fp8: float = 0.89
    """Of the efficiency that bf16 reaches of its peak."""
    fp8_blocks: float = 0.73
    """The same where weights have a scale for each block."""
    fp4: float = 0.68
    products: float = 1.0
    """Of the efficiency that a large product reaches, what those of a batch do."""
    blend: float = 1.47
    """How sharply a product goes over from memory to arithmetic; 1 is one after the other."""
    kernel_us: float = 5.1
    """Between the starts of two kernels of a replayed graph."""
    kernels: float = 9.0
    """Of a layer: norm, qkv, rotation with the cache's write, attention, out, norm, gate and up, product, down."""
    converting: float = 0.6
    """More of them where activations are converted, less what is fused."""
    sum_us: float = 1.0
    """Of a one-shot sum in an island, besides its link's latency."""
    two_shots: float = 1.6
    """Latency of a two-shot sum over a one-shot's; assumed."""
    link: float = 0.30
    """Share of the link that such a sum reaches."""
    busiest: float = 1.3
    """Tokens on the busiest rank of experts over the mean; assumed."""


RATES = Rates()
ON_CORES = replace(RATES, read=0.69, cache=0.69, products=0.67, kernel_us=17.8, converting=0.0, link=1.0)
"""Of a host's cores that all read at once; fitted to decode steps of SmolLM2-135M in bf16 on two cores, 15.7, 20.3 and 45.2 ms for
1, 8 and 32 sequences of 160 tokens, with prepacked weights and fused operations."""


def rates_of(device: DeviceKind) -> Rates:
    """What kernels reach of a kind of device."""
    return ON_CORES if device.is_host else RATES


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds by term."""

    weights: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    launch: float = 0.0
    tp: float = 0.0
    pp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0

    @property
    def total(self) -> float:
        """Of all."""
        return self.weights + self.attention + self.memory + self.launch + self.tp + self.pp + self.cp + self.ep

    def named(self) -> dict[str, float]:
        """By name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class Replica:
    """One replica as a table of times; counts that come again are looked up."""

    def __init__(self, served: Served, cut: Cut, network: Network, island: int, engine: Engine = RAYPLANE, rates: Rates | None = None):
        self.served, self.cut, self.network, self.engine = served, cut, network, engine
        self.rates = rates = rates or rates_of(network.device)
        self.device, self.part, self.island = network.device, part(served, cut), island
        self._known: dict[tuple[int, int, int], Terms] = {}
        bandwidth = self.device.hbm_gbytes_s * 1e9
        self._read_s = {n: 1 / (bandwidth * (rates.read_4bit if BITS[n] < 8 else rates.read)) for n in BITS}
        self._between_s = 1 / (bandwidth * rates.between)
        cached = served.model.layers / (cut.pp * cut.cp * cut.attention_dp)
        cache_bytes = self.part.kv_width * BITS[served.formats.kv] / 8
        flops_s = rates.latent * self.device.peak_flops["bf16"]
        self._cached_s = cached * max(cache_bytes / (bandwidth * rates.cache), self.part.cache_flops / flops_s)

    def rate(self, numbers: str) -> float:
        """FLOP/s of a large product of numbers in this format."""
        peak = self.device.peak_flops
        precision = next((p for p in FORMATS.get(numbers, ()) if p in peak), "bf16")
        fp8 = self.rates.fp8_blocks if self.served.formats.blocks else self.rates.fp8
        share = {"fp8": fp8, "int8": self.rates.fp8, "fp4": self.rates.fp4}.get(precision, 1.0)
        return peak[precision] * self.device.gemm_efficiency * self.rates.products * share

    def counts(self, decoding: int, prompt: int, starting: int) -> Terms:
        """Of a round, what depends on counts alone: tokens that decode, tokens of prompts, prompts that end in it."""
        key = (decoding, prompt, starting)
        if key not in self._known:
            self._known[key] = self._counts(*key)
        return self._known[key]

    def prompt_s(self, done: int, tokens: int) -> float:
        """Attention of the next `tokens` of a prompt of which `done` are in the cache."""
        model, keys = self.served.model, done + tokens / 2
        if self.served.windowed:
            keys += self.served.windowed * (min(model.window, keys) - keys)
        flops = 4.0 * self.part.q_width * tokens * keys * model.layers / (self.cut.pp * self.cut.cp * self.cut.attention_dp)
        return flops / (share_at(self.device.attention["flash"], done + tokens) * self.device.peak_flops["bf16"])

    def cache_s(self, decoding: int, context: float) -> float:
        """Attention of tokens that decode, over `context` cached ones in sum."""
        seen = context
        if self.served.windowed and decoding:
            seen += self.served.windowed * (min(self.served.model.window * decoding, context) - context)
        return self._cached_s * seen

    def _counts(self, decoding: int, prompt: int, starting: int) -> Terms:
        cut, rates, layers = self.cut, self.rates, self.served.model.layers
        n, logits = (decoding + prompt / cut.cp) / cut.pp, (decoding + starting) / cut.pp
        weights, head = layers * self._layer_s(n), cut.pp * self.head_s(logits)
        weights += max(head / cut.pp, head - weights) if self.engine.balanced else head
        memory = layers * self._between(n)
        kernels = rates.kernels + (rates.converting if self.served.formats.compute not in ("bf16", "fp32") else 0.0)
        floor = layers * kernels * rates.kernel_us * 1e-6
        tp, ep = layers * self._sums_s(n), layers * self._experts_apart_s(n)
        cp = layers * self._cp_s(decoding / cut.pp, prompt / cut.pp)
        hops = cut.pp * self._hop_s(n) if cut.pp > 1 else 0.0
        if prompt:
            floor = max(floor, layers * self.engine.launch_us * 1e-6 - weights - memory - tp)
        return Terms(weights, 0.0, memory, floor, tp, hops, cp, ep)

    def _product_s(self, n: float, elements: float, formats: tuple[str, str], read: float | None = None) -> float:
        """A product of n rows with a matrix, stored and computed in these formats, of which `read` elements are needed."""
        stored, computed = formats
        from_memory = (elements if read is None else read) * BITS[stored] / 8 * self._read_s[stored]
        arithmetic = 2.0 * elements * n / self.rate(computed)
        power = self.rates.blend
        return float((from_memory**power + arithmetic**power) ** (1 / power))

    def _layer_s(self, n: float) -> float:
        of, formats = self.part, self.served.formats
        usual = (formats.weights, formats.compute)
        apart = (formats.attention, formats.attention) if formats.attention else usual
        seconds = sum(self._product_s(n / self.cut.attention_dp, e, apart) for e in of.attention)
        seconds += sum(self._product_s(n, e, usual) for e in of.feed_forward)
        if self.served.experts:
            seconds += of.expert_layers * self._experts_s(n, self.served.experts.active / self.served.experts.experts)
        return seconds

    def _experts_s(self, n: float, chosen: float) -> float:
        """Of the experts on this rank, each of which a token chooses with this chance."""
        rows = n * chosen * (self.rates.busiest if self.cut.ep > 1 else 1.0)
        touched, usual = 1 - (1 - chosen) ** n, (self.served.formats.weights, self.served.formats.compute)
        sizes = [self.part.experts * e for e in self.part.expert]
        return sum(self._product_s(rows, elements, usual, touched * elements) for elements in sizes)

    def head_s(self, logits: float) -> float:
        """The product with the head, and the logits' way through sampling."""
        if not logits:
            return 0.0
        return (
            self._product_s(logits, self.part.head, (self.served.formats.tables,) * 2)
            + 8.0 * logits * self.served.model.vocab * self._between_s
        )

    def _between(self, n: float) -> float:
        """Norms and residual sums read and write [n, hidden] ten times, what lies between matrices four."""
        of, hidden = self.part, self.served.model.hidden
        return 2.0 * n * (10 * hidden + 4 * (of.q_width + of.kv_width) / self.cut.attention_dp + 4 * of.mlp_width) * self._between_s

    def _sums_s(self, n: float) -> float:
        cut, num_bytes = self.cut, 2.0 * n * self.served.model.hidden
        if cut.tp == 1:
            return 0.0
        if cut.attention_dp == 1:
            return self.served.sums * self.sum_s(cut.tp, num_bytes)
        inner = self.sum_s(cut.tp // cut.attention_dp, num_bytes / cut.attention_dp)
        return inner + (0.0 if cut.ep > 1 else self.sum_s(cut.tp, num_bytes))

    def sum_s(self, size: int, num_bytes: float) -> float:
        """All-reduce of a tensor over `size` ranks; every rank has the sum."""
        if size == 1:
            return 0.0
        group = Group(size, min(size, self.island))
        ring = self.network.all_reduce_s(group, num_bytes)
        if not group.inside:
            return ring
        link = self.network.links.island
        start, byte_s = (self.rates.sum_us + link.latency_us) * 1e-6, 1 / (link.gbytes_s * 1e9 * self.rates.link)
        one = start + (size - 1) * num_bytes * byte_s
        return min(ring, one, self.rates.two_shots * start + 2 * num_bytes * (size - 1) / size * byte_s)

    def _experts_apart_s(self, n: float) -> float:
        """Tokens to the ranks of their experts in 8 bits, and back in 16; within tp alone every rank has them already."""
        cut, experts = self.cut, self.served.experts
        if experts is None or cut.ep == 1 or cut.attention_dp == 1:
            return 0.0
        link = self.network.binding(Group(cut.ep, min(cut.ep, self.island)))
        sent = 3.0 * n / cut.attention_dp * experts.active * self.served.model.hidden * (1 - 1 / cut.ep)
        return 2 * (self.rates.sum_us + link.latency_us) * 1e-6 + self.rates.busiest * sent / (link.gbytes_s * 1e9 * self.rates.link)

    def _hop_s(self, n: float) -> float:
        """From a stage to the next: a rank sends its part of [n, hidden], which is gathered there."""
        cell = self.cut.tp * self.cut.cp
        return self.network.p2p_s(2.0 * n * self.served.model.hidden / self.cut.tp, self.island >= 2 * cell)

    def _cp_s(self, decoding: float, prompt: float) -> float:
        """Keys and values of a prompt's parts round the ring, less what attention hides; parts of decode's attention merged."""
        cp = self.cut.cp
        if cp == 1:
            return 0.0
        group = Group(cp, max(1, min(cp, self.island // self.cut.tp)))
        merged = 2.0 * decoding * (self.part.q_width + self.served.model.heads)
        ring = prompt * self.part.kv_width * BITS[self.served.formats.kv] / 8
        hidden = self.cut.pp * self.prompt_s(0, math.ceil(prompt)) / self.served.model.layers
        exposed = max(self.network.all_gather_s(group, ring) - hidden, 0.0) if prompt else 0.0
        return exposed + (self.network.all_reduce_s(group, merged) if decoding else 0.0)
