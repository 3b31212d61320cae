"""A rank without torch that meets the others over TCP: rank 0 listens where it is told to, and says from which addresses they came."""

import socket
import sys
import time

from rayplane.telemetry.channel import Channel

TIMEOUT_S = 30.0


def main() -> None:
    channel = Channel.open(int(sys.argv[sys.argv.index("--fd") + 1]))
    channel.send({"type": "ready"})
    order, door = channel.expect(("host_store", "join"), TIMEOUT_S), None
    if order["type"] == "host_store":
        door = socket.create_server((order["address"], 0))
        door.settimeout(TIMEOUT_S)
        channel.send({"type": "store", "host": order["address"], "port": door.getsockname()[1]})
        order = channel.expect("join", TIMEOUT_S)
    if door:
        others = [door.accept() for _ in range(order["config"]["ranks"] - 1)]
        channel.send({"type": "met", "address": order["address"], "others": sorted(address for _, (address, _) in others)})
        for connection, _ in others:
            connection.sendall(b"!")
    else:
        with socket.create_connection((order["host"], order["port"]), TIMEOUT_S, (order["address"], 0)) as connection:
            assert connection.recv(1) == b"!"
        channel.send({"type": "met", "address": order["address"], "others": [order["host"]]})
    while not channel.draining:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
