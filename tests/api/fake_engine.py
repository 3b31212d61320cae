"""An engine without a model: the next token is a fixed function of all tokens before it, so that texts can be compared.

It can be killed, stopped, slowed and made to hang; `live` holds what it has not finished. `python fake_engine.py PORT NAME` is one in a
process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from rayplane.serve.frames import TO_ENGINE, FrameError, FrameReader, encode
from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.request import FinishReason
from rayplane.serve.wire import Cancel, Frame, Hello, Leave, Progress, Pulse, Refused, Started, Submit, Tokens, Welcome, admits

SECRET = "open sesame"
LETTERS = b"abcdefghijklmnopqrstuvwxyz     "


def next_token(tokens, params) -> int:
    """A letter that follows from the tokens before; with a temperature from the seed and their number, too."""
    draw = hash((params.seed, len(tokens))) if params.temperature else 0
    return LETTERS[hash((tuple(tokens[-8:]), len(tokens), draw)) % len(LETTERS)]


@dataclass
class Work:
    submit: Submit
    connection: Connection
    output: list[int] = field(default_factory=list)
    born: float = 0.0
    started: bool = False

    @property
    def tokens(self):
        return [*self.submit.prompt, *self.submit.generated, *self.output]

    def step(self, script) -> Progress:
        params = self.submit.params
        done = len(self.submit.generated) + len(self.output)
        token = script[done] if script and done < len(script) else next_token(self.tokens, params)
        self.output.append(token)
        finish = None
        if token in params.stop_tokens and done >= params.min_tokens:
            finish = FinishReason.STOP
        elif done + 1 >= params.max_tokens:
            finish = FinishReason.LENGTH
        scored = None
        if params.logprobs is not None:
            scored = (TokenLogprob(-0.5, tuple((token + i, -0.5 - i) for i in range(params.logprobs))),)
        return Progress(self.submit.id, (token,), finish, scored)


class Connection(asyncio.Protocol):
    def __init__(self, engine):
        self.engine, self.reader, self.greeted = engine, FrameReader(TO_ENGINE), False

    def connection_made(self, transport):
        self.transport = transport
        self.engine.connections.add(self)

    def connection_lost(self, exc):
        self.engine.connections.discard(self)
        for key in [key for key in self.engine.live if key[0] is self]:
            del self.engine.live[key]

    def data_received(self, data):
        try:
            for frame in self.reader.feed(data):
                self.engine.heard(self, frame)
        except FrameError:
            self.transport.abort()

    def send(self, frame: Frame) -> None:
        if not self.transport.is_closing():
            self.transport.write(encode(frame))


class FakeEngine:
    """`step_s` per token; `script`: the tokens of every answer, as far as it goes."""

    def __init__(self, name="r0", step_s=0.002, max_sequences=64, script=(), queue=True):
        self.name, self.step_s, self.max_sequences, self.script = name, step_s, max_sequences, tuple(script)
        self.live: dict[tuple[Connection, int], Work] = {}
        self.connections: set[Connection] = set()
        self.submitted: list[Submit] = []
        self.cancelled: list[int] = []
        self.steps = 0
        self.hung = self.mute = False
        self.hung_at = 0.0
        self.kv_tokens = 1_000_000

    async def start(self, port=0):
        self.loop = asyncio.get_running_loop()
        self.server = await self.loop.create_server(lambda: Connection(self), "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.tasks = [self.loop.create_task(self._run()), self.loop.create_task(self._pulse())]
        return self

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        """As SIGKILL: every connection breaks, and nobody listens any more."""
        self.server.close()
        for task in self.tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.transport.abort()

    def hang(self):
        """A step does not end; pulses go on."""
        self.hung, self.hung_at = True, self.loop.time()

    def stop(self):
        """As SIGSTOP: connections stay, nothing comes."""
        self.hung = self.mute = True

    def leave(self):
        """It asks for no new requests."""
        for connection in self.connections:
            connection.send(Leave())

    def heard(self, connection, frame):
        if not connection.greeted:
            if not (isinstance(frame, Hello) and admits(frame, SECRET)):
                raise FrameError("no Hello, or a wrong secret")
            connection.greeted = True
            if not self.mute:
                connection.send(Welcome(self.name, "m", 512, 4, self.kv_tokens, self.max_sequences))
                connection.send(self.pulse())
            return
        match frame:
            case Submit():
                self.submitted.append(frame)
                if frame.params.structure and frame.params.structure.source == "(":
                    connection.send(Refused(frame.id, "this is no regular expression", "structure"))
                    return
                self.live[connection, frame.id] = Work(frame, connection, born=self.loop.time())
            case Cancel(id=number):
                self.cancelled.append(number)
                self.live.pop((connection, number), None)
            case _:
                pass

    async def _run(self):
        while True:
            await asyncio.sleep(self.step_s)
            if not self.hung and self.live:
                self._step()

    def _step(self):
        self.steps += 1
        frames: dict[Connection, tuple[list[Progress], list[Started]]] = {}
        for key, work in list(self.live.items())[: self.max_sequences]:
            progress, started = frames.setdefault(work.connection, ([], []))
            limit = work.submit.deadline_s
            if not work.started:
                work.started = True
                started.append(Started(work.submit.id, 0, self.loop.time() - work.born))
            if limit is not None and self.loop.time() - work.born > limit:
                progress.append(Progress(work.submit.id, (), FinishReason.DEADLINE))
            else:
                progress.append(work.step(self.script))
            if progress[-1].finish:
                del self.live[key]
        for connection, (progress, started) in frames.items():
            connection.send(Tokens(tuple(progress), tuple(started)))

    def pulse(self) -> Pulse:
        age = self.loop.time() - self.hung_at if self.hung else 0.0
        used = sum(len(work.tokens) for work in self.live.values())
        running = min(len(self.live), self.max_sequences)
        return Pulse(self.steps, age, self.step_s, len(self.live) - running, running, used, self.kv_tokens, 3, 8, 5)

    async def _pulse(self):
        while True:
            if not self.mute:
                for connection in self.connections:
                    if connection.greeted:
                        connection.send(self.pulse())
            await asyncio.sleep(0.25)


async def main(port: int, name: str, step_s: float, max_sequences: int) -> None:
    await FakeEngine(name, step_s, max_sequences).start(port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
