"""A replica's engine: what ingresses ask becomes batches, and what batches give becomes frames. No clock, no thread, no socket.

    ingress ──Submit, Cancel──▶ receive ─▶ Scheduler ─▶ next_step ──StepArrays──▶ ranks
            ◀──Tokens, Refused──  done  ◀──────────────────────────Sampled────────

The `notes` of a step tell the rank that draws tokens of the sequences that it has not seen yet, and of those that have ended.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from rayplane.errors import RequestError
from rayplane.serve.batch import Batch, StepArrays
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.notes import Admission, Notes, encode
from rayplane.serve.outputs import Output, Sampled
from rayplane.serve.request import FinishReason, Request, Sequence
from rayplane.serve.sampling import Structure
from rayplane.serve.scheduler import Scheduler
from rayplane.serve.wire import Cancel, Frame, Progress, Pulse, Refused, Started, Submit, Tokens

SMOOTHING = 0.1
"""Weight of the newest step in the mean seconds per token."""

Letters = list[tuple[int, Frame]]
"""(connection, frame for it)."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that is on its way."""

    batch: Batch
    left_s: float
    expected_s: float


class Engine:
    """Connections go by numbers, which their port counts up."""

    def __init__(self, limits: SchedulerLimits, end_tokens: frozenset[int], check: Callable[[Structure], object], token_s: float = 0.0):
        """`check` raises RequestError for a structure that cannot be held to; `token_s`: seconds per token, until steps show it."""
        self._check = check
        self._scheduler = Scheduler(limits, end_tokens)
        self._limits = limits
        self._of: dict[str, tuple[int, int]] = {}
        """Connection and number of each request."""
        self._by_connection: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self._known: set[int] = set()
        """Numbers of the sequences that the drawing rank knows."""
        self._ended: list[int] = []
        """Of those, which it does not know to have ended."""
        self._numbers: dict[str, int] = {}
        self._unstarted: set[str] = set()
        self._flights: deque[Flight] = deque()
        self._token_s = token_s
        self._steps = 0

    @property
    def has_work(self) -> bool:
        """Some request has not ended, or some step is not back."""
        return self._scheduler.has_work

    @property
    def oldest_s(self) -> float | None:
        """When the oldest step in flight left."""
        return self._flights[0].left_s if self._flights else None

    def receive(self, connection: int, frame: Frame, now_s: float) -> Letters:
        """What an ingress says: a request, or that nobody waits for one any more."""
        match frame:
            case Submit():
                return self._submit(connection, frame, now_s)
            case Cancel(id=number):
                if request_id := self._by_connection[connection].get(number):
                    self._finish(request_id)
        return []

    def closed(self, connection: int) -> None:
        """A connection has ended, and its requests with it."""
        for request_id in tuple(self._by_connection.pop(connection, {}).values()):
            self._finish(request_id)

    def expire(self, now_s: float) -> Letters:
        """End the requests whose deadline has passed."""
        return self._letters(self._scheduler.expire(now_s), [])

    def next_step(self, now_s: float) -> StepArrays | None:
        """The next step, to be sent to the ranks; None when there is nothing to do, or enough on its way."""
        batch = self._scheduler.schedule(now_s)
        if batch is None:
            return None
        self._flights.append(Flight(batch, now_s, self._token_s * batch.num_tokens))
        return self._scheduler.arrays(batch, self._notes(batch))

    def done(self, sampled: Items[Sampled], now_s: float) -> Letters:
        """The oldest step is back."""
        flight = self._flights.popleft()
        batch, self._steps = flight.batch, self._steps + 1
        spent = (now_s - flight.left_s) / max(1, batch.num_tokens)
        self._token_s += SMOOTHING * (spent - self._token_s) if self._token_s else spent
        started = [self._started(s) for s in batch.sequences if s.request.id in self._unstarted]
        return self._letters(self._scheduler.update(batch, sampled), started)

    def pulse(self, now_s: float) -> Pulse:
        """How it stands."""
        stats, oldest = self._scheduler.stats, self._flights[0] if self._flights else None
        kv_tokens = self._limits.num_blocks * self._limits.block_size
        return Pulse(
            step=self._steps,
            oldest_s=now_s - oldest.left_s if oldest else 0.0,
            expected_s=oldest.expected_s if oldest else 0.0,
            waiting=stats.num_waiting,
            running=stats.num_running,
            kv_used=round(stats.kv_usage_ratio * kv_tokens),
            kv_tokens=kv_tokens,
            preemptions=stats.num_preemptions,
            drafted=stats.num_drafted_tokens,
            accepted=stats.num_accepted_tokens,
        )

    def _submit(self, connection: int, frame: Submit, now_s: float) -> Letters:
        request_id = f"{connection}:{frame.id}"
        request = Request(
            id=request_id,
            prompt=frame.prompt,
            params=frame.params,
            arrival_s=now_s,
            priority=frame.priority,
            deadline_s=None if frame.deadline_s is None else now_s + frame.deadline_s,
            salt=frame.salt,
            fork_of=f"{connection}:{frame.fork_of}" if frame.fork_of else "",
            generated=frame.generated,
        )
        try:
            if frame.params.structure is not None:
                self._check(frame.params.structure)  # the rank that draws could only die of it, and the service with it
            self._scheduler.add(request)
        except RequestError as error:
            return [(connection, Refused(frame.id, str(error), error.field))]
        self._of[request_id] = connection, frame.id
        self._by_connection[connection][frame.id] = request_id
        self._unstarted.add(request_id)
        return []

    def _finish(self, request_id: str) -> None:
        self._scheduler.finish(request_id, FinishReason.ABORT)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        connection, number = self._of.pop(request_id)
        self._by_connection.get(connection, {}).pop(number, None)
        self._unstarted.discard(request_id)
        if (known := self._numbers.pop(request_id, None)) is not None:
            self._known.discard(known)
            self._ended.append(known)

    def _notes(self, batch: Batch) -> bytes:
        """What is new for the rank that draws."""
        admissions = [self._admission(s) for s in batch.sampled if s.number not in self._known and s.request.id in self._of]
        ended, self._ended = self._ended, []
        return encode(Notes(tuple(admissions), tuple(ended))) if admissions or ended else b""

    def _admission(self, sequence: Sequence) -> Admission:
        self._known.add(sequence.number)
        self._numbers[sequence.request.id] = sequence.number
        output = tuple(sequence.tokens[len(sequence.request.prompt) :])
        return Admission(sequence.number, sequence.request.params, sequence.request.prompt, output, tuple(sequence.end_tokens))

    def _started(self, sequence: Sequence) -> tuple[str, Started]:
        request = sequence.request
        self._unstarted.discard(request.id)
        queued_s = (sequence.started_s or request.arrival_s) - request.arrival_s
        return request.id, Started(self._of[request.id][1], sequence.cached, queued_s)

    def _letters(self, outputs: Items[Output], started: Items[tuple[str, Started]]) -> Letters:
        """A frame for each connection that something is new for."""
        progress: defaultdict[int, list[Progress]] = defaultdict(list)
        begun: defaultdict[int, list[Started]] = defaultdict(list)
        for request_id, start in started:
            begun[self._of[request_id][0]].append(start)
        for output in outputs:
            if output.id in self._of:
                connection, number = self._of[output.id]
                progress[connection].append(Progress(number, output.tokens, output.finish, output.logprobs))
                if output.finish is not None:
                    self._forget(output.id)
        return [(c, Tokens(tuple(progress[c]), tuple(begun[c]))) for c in {**begun, **progress}]
