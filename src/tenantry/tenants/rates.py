"""Token buckets: so many events a second on average, and so many at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """`tokens` were in it at the time `counted_at`; times are in seconds, on any clock that is the same throughout.

    It may be overdrawn, by somebody who cannot know beforehand how many it will be; it then stays empty for longer.
    """

    rate: float
    burst: float
    tokens: float
    counted_at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> Bucket:
        return cls(rate, burst, burst, now)

    def fill(self, now: float) -> None:
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.counted_at) * self.rate)
        self.counted_at = max(now, self.counted_at)

    def take(self, count: float, now: float) -> None:
        self.fill(now)
        self.tokens -= count

    def wait(self, count: float, now: float) -> float:
        """Seconds until `count` could be taken. More than the bucket holds is had when it is full."""
        self.fill(now)
        return max(0.0, min(count, self.burst) - self.tokens) / self.rate

    def resize(self, rate: float, burst: float, now: float) -> None:
        """The plan has changed."""
        if (rate, burst) != (self.rate, self.burst):
            self.fill(now)
            self.rate, self.burst, self.tokens = rate, burst, min(self.tokens, burst)
