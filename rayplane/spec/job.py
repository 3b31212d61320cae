"""What a user writes: the job file. Help stands under each field; `load` turns mistakes into errors with file and line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rayplane.spec.cluster import Reach
from rayplane.spec.cluster_section import ClusterSection
from rayplane.spec.layout import Layout
from rayplane.spec.model_section import ModelSection
from rayplane.spec.section import Count, Degree, NonNegative, Positive, PositiveInt, Section
from rayplane.spec.serve_section import ServeLayoutSection, ServeSection


class SourceSection(Section):
    """A path of the data, and how much of the training comes from there."""

    path: str
    weight: Positive | None = None
    """Share of the samples, relative to the weights of the other paths. All paths have one, or none has: then they are joined."""


def _as_source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


Source = Annotated[SourceSection, BeforeValidator(_as_source)]
"""`corpus.jsonl` is short for `{path: corpus.jsonl}`."""


READABLE = ["*.txt", "*.md", "*.rst", "*.py", "*.jsonl", "*.parquet", "*.npy", "*.idx"]


class DataSection(Section):
    """What to train on."""

    path: Annotated[list[Source], Field(min_length=1)]
    """Files or folders: text, .jsonl, .parquet, token arrays (.npy, .bin, Megatron's .idx with its .bin; the prefix of both will do).
    `python://stdlib` is the interpreter's own library. `{path: …, weight: 0.3}` blends paths by weight.

    Relative to the directory that rayplane runs in, as is every path of a job. They must exist, unless the cluster is described.
    """
    tokenizer: str = "bytes"
    """`bytes` (one token per byte), `model` (the one that model.path brings along), a tokenizer.json, a .gguf file, or a Hugging Face
    folder; ignored for token arrays."""
    seq_len: PositiveInt = 1024
    """Tokens per sample."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the documents kept aside to measure the loss on."""
    holdout_samples: PositiveInt = 128
    """At most so many held-out samples are measured, spread evenly."""
    include: list[str] = READABLE
    """Which files of a folder are read."""
    text_field: str = "text"
    """The field of a .jsonl record, or column of a .parquet file, that holds the text."""
    dtype: Literal["uint8", "uint16", "int32", "uint32", "int64"] = "uint16"
    """Element type of .bin token arrays; Megatron's .idx says it itself."""
    document_mask: bool = False
    """Whether tokens attend only within their own document, where a sample holds several, and are never to predict the next one's
    first token. Needs data that says where documents start: text, or Megatron's .idx.
    """
    seed: Count = 0
    """Order of the samples."""


class OptimizerSection(Section):
    """AdamW (Loshchilov and Hutter, 2019) and its learning rate over time."""

    lr: Positive = 3e-4
    """Peak learning rate."""
    warmup_steps: Count = 0
    """Steps of linear warm-up."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls from its peak to `min_lr` at the last step."""
    min_lr: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    """Applied to matrices only."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Positive = 1e-8
    clip: NonNegative = 0.0
    """Global gradient norm is cut to this; 0 switches it off."""
    offload: bool = False
    """Whether fp32 weights and moments lie in the host's memory, and are updated there."""


class CheckpointSection(Section):
    """Where and when state is saved. The folder must be visible to every node."""

    dir: str
    every: PositiveInt = 100
    """Steps between saves; the last step is always saved."""
    keep: PositiveInt = 2
    """Newest complete checkpoints to keep."""
    memory_every: PositiveInt | None = None
    """Steps between copies in the hosts' memory, each host's also on a neighbour; a restart goes on from there. None when left out."""
    memory_dir: str = "/dev/shm"
    """A folder in memory on every host, with room for two such copies."""


class TraceSection(Section):
    """Steps of which every rank records what it did when, for `rayplane trace`."""

    first: PositiveInt = 10
    """The first of them, counted from 1."""
    steps: Annotated[int, Field(gt=0, le=1000)] = 2


class TrainSection(Section):
    """A training job."""

    data: DataSection
    steps: PositiveInt
    global_batch: Annotated[int, Field(gt=0, le=10**6)]
    """Samples per optimizer step, over all replicas and microbatches."""
    optimizer: OptimizerSection = OptimizerSection()
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 keeps fp32 master weights, gradients and optimizer state."""
    seed: Count = 0
    """Initial weights."""
    checkpoint: CheckpointSection
    trace: TraceSection | None = None
    """Nothing is recorded when left out; `trace: {}` records steps 10 and 11."""


class LayoutSection(Section):
    """Degrees per axis. What is left out is 1, or chosen by the planner where it costs no device."""

    dp: Degree = 1
    pp: Degree = 1
    cp: Degree = 1
    tp: Degree = 1
    sp: bool = False
    vpp: Degree = 1
    schedule: Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zbv"] = "1f1b"
    """`interleaved` takes vpp of 2 or more, `zbv` exactly 2, the others 1."""
    micro_batch: PositiveInt | None = None
    """Samples per microbatch; chosen by the planner when left out."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """What is cut over dp x cp: 1 the optimizer's state, 2 gradients too, 3 weights too, gathered layer by layer as they are used."""
    shard: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """Over how many of the dp x cp ranks zero cuts, such as the devices of an island; the others hold copies. All when left out."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward computes again instead of keeping it: `selective` attention and the gated product, `full` whole layers."""
    recompute_layers: PositiveInt | None = None
    """How many layers of each chunk are computed again, from its first on; all when left out."""
    cp_method: Literal["ring", "gather"] = "ring"
    """How cp ranks come by the keys of the whole sequence: passed on behind compute, or gathered at once."""
    boundaries: list[Count] | None = None
    """Layers per stage; cut by cost when left out."""

    def layout(self, micro_batch: int) -> Layout:
        """As a value; `micro_batch` is used when the job leaves it to the planner."""
        return Layout(
            dp=self.dp,
            pp=self.pp,
            cp=self.cp,
            tp=self.tp,
            sp=self.sp,
            vpp=self.vpp,
            schedule=self.schedule,
            micro_batch=self.micro_batch or micro_batch,
            zero=self.zero,
            shard=self.shard or 0,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers or 0,
            cp_method=self.cp_method,
            boundaries=tuple(self.boundaries or ()),
        )


class RestartsSection(Section):
    """Restarts by what struck the job."""

    rank: Count = 3
    """A rank crashed, hung, ran out of memory or got NaN."""
    node: Count = 8
    """A machine was lost."""
    preemption: Count = 100
    """A machine was taken back, with notice."""
    controller: Count = 8
    """The driver, which is the command that runs the job, died without an end, so many times in a row; then it is not run again."""


class LimitsSection(Section):
    """What the controller may do when something fails."""

    restarts: Count | RestartsSection = 3
    """Restarts after failures that are not the user's error; one number is the budget of each kind but `controller`."""
    min_devices: Annotated[int, Field(ge=1)] | None = None
    """The fewest devices on which the job goes on when others are lost; left out, it waits for as many as it has."""
    max_devices: Annotated[int, Field(ge=1)] | None = None
    """The most devices that it takes; left out, all that the cluster has."""
    replan: bool = True
    """Whether it moves to another layout when measurements show that this pays: other stage boundaries or microbatches, and with
    `layout: auto` another layout, on more devices too when there are some. A layout that the job gives keeps what it says.
    """
    straggler_factor: Annotated[float, Field(gt=1, le=1000)] = 1.5
    """A rank that computes so many times as long as its peers is named, and given another device where one is free."""
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = 0
    """Of jobs that wait for the same devices the one with the highest goes first, and of equals the one that came first."""
    fallback: Reach = "island"
    """How far apart the ranks of a tp group may be where no island, that is NVLink domain, is free that holds them all: `rack`, for
    nodes with the same label rayplane.io/rack, or `anywhere`. The slower step is then predicted anew, and said.
    """
    step_timeout_s: Annotated[float, Field(gt=0, le=10**6)] = 600.0
    """A step, or any one communication, that takes longer counts as a failure.

    At most 11 days: the libraries below count milliseconds in 32 bits.
    """


class MetricsSection(Section):
    """Prometheus exposition."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port on every node; 0 takes a free one and prints it."""
    prometheus: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    """URL of a Prometheus server that scrapes the job; re-planning asks it instead of the ranks' own reports."""


class JobSpec(Section):
    """What every job file has."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    model: ModelSection
    cluster: Literal["auto"] | ClusterSection = "auto"
    limits: LimitsSection = LimitsSection()
    metrics: MetricsSection = MetricsSection()


class TrainJob(JobSpec):
    """A job file that trains."""

    train: TrainSection
    layout: Literal["auto"] | LayoutSection = "auto"


class ServeJob(JobSpec):
    """A job file that serves."""

    serve: ServeSection
    layout: Literal["auto"] | ServeLayoutSection = "auto"


AnyJob = TrainJob | ServeJob
"""A job has `train` or `serve`."""
