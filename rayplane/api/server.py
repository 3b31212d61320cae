"""The process of an ingress: `python -m rayplane.api.server --fd N`, started and watched by its owner like any rank.

ready ─▶ (host_store ─▶ store) ─▶ join ─▶ serving ─▶ traffic … traffic ─▶ done

    owner to ingress   {"type": "join", …, "config": the fields of a ServerConfig}
                       {"type": "replicas", "replicas": [{"id", "address"}, …]}     from now on these
                       {"type": "drain"}, or SIGTERM                                finish what runs and end
    ingress to owner   {"type": "serving", "address": "HOST:PORT"}
                       {"type": "traffic", "running", "unplaced", "replicas": {id: {state, reason, running, waiting, kv_usage}}, …}
                                                                                    every TRAFFIC_S; the rest is a traffic.Summary
                       {"type": "done", "drained": true}

It needs no store; the one it is asked to open is a port that nobody uses.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import threading
import traceback
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from rayplane.api.config import ReplicaAddress, ServerConfig
from rayplane.api.ingress import Service
from rayplane.errors import RayplaneError
from rayplane.telemetry.channel import Channel, Message

OWNER_TIMEOUT_S = 600.0
TRAFFIC_S = 1.0
ORDER_CHECK_S = 0.02
NO_STORE_PORT = 1
CONFIG = TypeAdapter(ServerConfig)
PLACES = TypeAdapter(tuple[ReplicaAddress, ...])


def main() -> None:
    """Be an ingress from start to end; what goes wrong is told to the owner as "failed"."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    channel = Channel.open(parser.parse_args().fd)
    try:
        config = CONFIG.validate_python(_meet(channel)["config"])
        asyncio.run(_serve(channel, config))
    except RayplaneError as error:
        channel.send({"type": "failed", "kind": "user", "message": str(error), "traceback": ""})
        raise SystemExit(1) from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        channel.send({"type": "failed", "kind": "rank", "message": message, "traceback": traceback.format_exc()})
        raise SystemExit(1) from error


def _meet(channel: Channel) -> Message:
    """The order to join."""
    channel.send({"type": "ready"})
    first = channel.expect(("host_store", "join"), OWNER_TIMEOUT_S)
    if first["type"] == "host_store":
        channel.send({"type": "store", "host": first["address"], "port": NO_STORE_PORT})
        first = channel.expect("join", OWNER_TIMEOUT_S)
    return first


async def _serve(channel: Channel, config: ServerConfig) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    service = Service(config)
    channel.send({"type": "serving", "address": service.address})
    threading.Thread(target=_follow, args=(channel, loop, service), name="replicas", daemon=True).start()
    reporting = loop.create_task(_report(channel, service))
    orders = loop.create_task(_await_drain(channel, stop))
    await asyncio.wait([orders, loop.create_task(service.failed())], return_when=asyncio.FIRST_COMPLETED)
    if not stop.is_set():
        raise RuntimeError("the HTTP server has ended by itself")
    await service.drain()
    reporting.cancel()
    channel.send({"type": "done", "drained": True})


def _follow(channel: Channel, loop: asyncio.AbstractEventLoop, service: Service) -> None:
    """Hand on the owner's lists of replicas, from a thread of its own: the channel blocks."""
    while True:
        try:
            message = channel.expect("replicas", OWNER_TIMEOUT_S)
        except TimeoutError:
            continue
        places = PLACES.validate_python(message["replicas"])
        loop.call_soon_threadsafe(service.fleet.set_replicas, places)


async def _await_drain(channel: Channel, stop: asyncio.Event) -> None:
    while not (stop.is_set() or channel.draining):
        await asyncio.sleep(ORDER_CHECK_S)
    stop.set()


async def _report(channel: Channel, service: Service) -> None:
    while True:
        await asyncio.sleep(TRAFFIC_S)
        channel.send({"type": "traffic", **asdict(service.metrics.traffic.summary()), **_standing(service)})


def _standing(service: Service) -> dict[str, Any]:
    """How it stands at this moment."""
    replicas = {}
    for replica in service.fleet.replicas:
        pulse = replica.pulse
        figures = (pulse.running, pulse.waiting, pulse.kv_used / max(1, pulse.kv_tokens)) if pulse else (0, 0, 0.0)
        known = (replica.state, replica.reason, *figures)
        replicas[replica.id] = dict(zip(("state", "reason", "running", "waiting", "kv_usage"), known, strict=True))
    return {"running": service.fleet.in_flight, "unplaced": service.fleet.unplaced, "replicas": replicas}


if __name__ == "__main__":
    main()
