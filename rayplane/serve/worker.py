"""The process of one rank of a replica: `python -m rayplane.serve.worker --fd N`, started and watched by its owner.

ready ─▶ (store) ─▶ join ─▶ mesh, weights, cache ─▶ started ─▶ steps ─▶ done

    config            {"job": a ServeJob, "layout", "replica": its name, "secret": what ingresses have to say, "threads",
                       "tokenizer": its tokenizer.json or "", "end_tokens": what ends a text}
    rank 0, besides   {"type": "serving", "replica", "address", "kv_tokens"}       ingresses can connect from now on
    every rank        {"type": "served", …}                                        where its time went (report.py)
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import tokenizers
import torch
import torch.distributed as dist

from rayplane.errors import RequestError
from rayplane.rank.life import live, mesh_of
from rayplane.serve.engine import Engine
from rayplane.serve.host import Host, warm_up
from rayplane.serve.packing import unpack
from rayplane.serve.port import Port
from rayplane.serve.rank import ServeRank, agreed, drawing_rank
from rayplane.serve.report import Reporter
from rayplane.serve.sampler import Matcher, NewMatcher
from rayplane.serve.sampling import Structure
from rayplane.serve.settings import cache_blocks, settings_of
from rayplane.serve.star import Spoke, join
from rayplane.serve.wire import Welcome
from rayplane.spec.job import ServeJob
from rayplane.telemetry.channel import Channel, Message

GRAMMAR = "rayplane.serve.grammar"


def _serve(channel: Channel, order: Message, store: dist.Store | None) -> None:
    config = order["config"]
    job = ServeJob.model_validate(config["job"], strict=False)
    torch.set_num_threads(config["threads"])
    mesh = mesh_of(order, store, job.limits.step_timeout_s)
    settings = settings_of(job, mesh.device, config["threads"])
    blocks = agreed(mesh, cache_blocks(settings, mesh))
    limits = settings.limits(blocks, mesh.layout.pp, mesh.layout.cp)
    matchers = _matchers(config, settings.spec.vocab)
    rank = ServeRank(settings.spec, settings.serving, mesh, blocks, matchers)
    line = join(mesh, order["address"], drawing_rank(mesh))
    reporter = Reporter(mesh, channel, config["replica"])
    channel.send({"type": "started", "step": 0, "params": settings.spec.num_params})
    if isinstance(line, Spoke):
        _follow(line, rank, reporter)
    else:
        welcome = Welcome(
            replica=config["replica"],
            model=job.serve.model_name or job.name,
            max_context=limits.max_context,
            block=limits.block_size,
            kv_tokens=blocks * limits.block_size,
            max_sequences=limits.max_sequences,
        )
        token_s = warm_up(rank, line, limits)
        port = Port(order["address"], config["secret"], welcome)
        engine = Engine(limits, frozenset(config["end_tokens"]), matchers, token_s)
        host = Host(engine, port, line, rank, reporter)
        channel.send({"type": "serving", "replica": config["replica"], "address": port.address, "kv_tokens": welcome.kv_tokens})
        host.serve(lambda: channel.draining, job.serve.drain_s)
        port.close()
        line.close()
    reporter.tell()
    channel.send({"type": "done", "step": reporter.steps, "drained": True})
    mesh.close()


def _follow(line: Spoke, rank: ServeRank, reporter: Reporter) -> None:
    """Do what rank 0 sends, until it closes."""
    clock = rank.mesh.clock
    while True:
        with clock.phase("recv_wait"):
            packed = line.step()
        if packed is None:
            return
        step = unpack(packed)
        drawn = rank.run(step)
        if rank.draws:
            line.send(drawn)
        reporter.stepped(len(step.tokens))


def _matchers(config: dict[str, Any], vocab: int) -> NewMatcher:
    """What makes matchers of grammars, where xgrammar is installed and tokens are those of a tokenizer; the engine asks it first."""
    if not config["tokenizer"]:
        return _no_matcher("no answer of this model can be held to a structure, for its tokens are bytes; leave it out")
    if find_spec("xgrammar") is None:
        return _no_matcher("structured output needs the package xgrammar; install rayplane[structured]")
    model = tokenizers.Tokenizer.from_file(config["tokenizer"])
    tokens = [model.id_to_token(i) or "" for i in range(model.get_vocab_size())]
    grammars: NewMatcher = import_module(GRAMMAR).Grammars(tokens, model.to_str(), vocab, config["end_tokens"])
    return grammars


def _no_matcher(reason: str) -> NewMatcher:
    def refuse(structure: Structure) -> Matcher:
        raise RequestError("structure", reason)

    return refuse


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    live(_serve)
