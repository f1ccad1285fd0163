"""What pacing does for two namespaces that share an API server, simulated: why its constants are as they are.

The API server is a processor that all requests under way share. A call of the neighbour is six requests, one after the
other. A piece of the flood's work is three, and the last of them is measured, as are two of a call. How long a request
takes varies: the logarithm has a normal distribution, with a standard deviation of `noise`.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest

from codeexec_operator.core import pacing
from codeexec_operator.core.pacing import Pacing

REQUEST, CALL, PIECE = 0.006, 6, 3
UNDER_WAY = 25
"""Requests for one namespace that the operator has under way at most."""
Do = Callable[[], None]


class ApiServer:
    """Requests share so many cores; none takes more than one."""

    def __init__(self, cores: float, noise: float) -> None:
        self.now, self._cores, self._noise = 0.0, cores, noise
        self._chance, self._numbers = random.Random(1), itertools.count()
        self._left: dict[int, float] = {}
        self._done: dict[int, Do] = {}
        self._timers: list[tuple[float, int, Do]] = []

    def request(self, done: Do, seconds: float = REQUEST) -> None:
        number = next(self._numbers)
        self._left[number] = seconds * math.exp(self._chance.gauss(0, self._noise) - self._noise**2 / 2)
        self._done[number] = done

    def requests(self, count: int, done: Callable[[float], None], last: Callable[[float], None]) -> None:
        """So many, one after the other; `last` is called with the seconds of the last, and `done` with those of all."""
        first = self.now

        def one(left: int) -> None:
            begun = self.now

            def answered() -> None:
                if left > 1:
                    one(left - 1)
                    return
                last(self.now - begun)
                done(self.now - first)

            self.request(answered)

        one(count)

    def after(self, seconds: float, do: Do) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), do))

    def run(self, seconds: float) -> None:
        while self.now < seconds:
            rate = min(1.0, self._cores / len(self._left)) if self._left else 0.0
            first = min(self._left, key=self._left.__getitem__) if self._left else None
            answer = self.now + self._left[first] / rate if first is not None else math.inf
            timer = self._timers[0][0] if self._timers else math.inf
            until = min(answer, timer)
            for number in self._left:
                self._left[number] -= (until - self.now) * rate
            self.now = until
            if first is not None and answer <= timer:
                del self._left[first]
                self._done.pop(first)()
            else:
                heapq.heappop(self._timers)[2]()


@dataclass
class Two:
    """A neighbour that makes a call again and again, after so many seconds, and a namespace with an endless queue."""

    every: float = 0.02
    flood: bool = True
    cores: float = 2.0
    noise: float = 0.2
    creators: int = 0
    """Requests of the flood's clients that are always under way."""
    seconds: float = 60.0
    calls: list[float] = field(default_factory=list)
    pieces: int = 0

    def __post_init__(self) -> None:
        self._api, self._pacing, self._timer = ApiServer(self.cores, self.noise), Pacing(), 0
        if self.every < math.inf:
            self._call()
        if self.flood:
            self._api.after(5, self._serve)
            for _ in range(self.creators):
                self._api.after(5, self._create)
        self._api.run(self.seconds)

    @property
    def call(self) -> float:
        return median(self.calls[1:])

    def _measured(self, seconds: float) -> None:
        self._pacing.congestion.measured(seconds, self._api.now)

    def _call(self) -> None:
        begun = self._api.now
        self._pacing.begin("quiet", begun)

        def done(_: float) -> None:
            self.calls.append(self._api.now - begun)
            self._pacing.end("quiet", self.calls[-1], self._api.now)
            self._api.after(self.every, self._call)

        half = CALL // 2
        self._api.requests(half, lambda _: self._api.requests(half, done, self._measured), self._measured)

    def _create(self) -> None:
        self._api.request(self._create, 1.5 * REQUEST)

    def _serve(self) -> None:
        self._timer += 1
        mine = self._timer
        while self._pacing._under_way["flood"] < UNDER_WAY:
            if pause := self._pacing.pause("flood", 10_000, self._api.now):
                if pause < math.inf:
                    self._api.after(pause, lambda: self._serve() if mine == self._timer else None)
                return
            self._pacing.begin("flood", self._api.now)
            self._api.requests(PIECE, self._end, self._measured)

    def _end(self, took: float) -> None:
        self.pieces += 1
        self._pacing.end("flood", took, self._api.now)
        self._serve()


@pytest.mark.parametrize("noise", [0.2, 0.6])
def test_a_neighbour_that_calls_twice_a_minute_is_a_neighbour(noise: float) -> None:
    """Between its calls the flood would take all there is, and the next call would meet that."""
    alone = Two(every=30, flood=False, noise=noise, seconds=600).call
    assert Two(every=30, noise=noise, seconds=600).call < 3 * alone


@pytest.mark.parametrize("noise", [0.2, 0.6])
def test_a_namespace_that_is_alone_has_all_there_is(noise: float) -> None:
    all_there_is = 2.0 / (PIECE * REQUEST)
    assert Two(every=math.inf, noise=noise).pieces / 55 > 0.9 * all_there_is


def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_SLOWER", 1.3)
    monkeypatch.setattr(pacing, "LOWEST_LIMIT", 0.05)


def test_a_lower_threshold_takes_noise_for_congestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 16 cores, where a neighbour notices nothing of a flood: it would only slow that down, for nobody."""
    alone, beside = Two(flood=False, noise=0.6, cores=16), Two(noise=0.6, cores=16)
    assert beside.call < 1.1 * alone.call
    lower(monkeypatch)
    assert Two(noise=0.6, cores=16).pieces < 0.3 * beside.pieces


def test_a_lower_limit_helps_little_beside_a_flood_of_creations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the processor from the neighbour, and the operator does not pace them."""
    alone, beside = Two(flood=False).call, Two(creators=3)
    assert 1.8 * alone < beside.call < 2.5 * alone
    lower(monkeypatch)
    lowest = Two(creators=3)
    assert lowest.call > 0.9 * beside.call
    assert lowest.pieces < 0.5 * beside.pieces
