"""Windows: how near two records of a join must be in time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JoinWindows:
    """From how much earlier to how much later than the left record the right one may be, both ends included.

    `grace` is how far stream time may be beyond that before a record is late.
    """

    before: str
    after: str
    grace: str

    @staticmethod
    def of(difference: str, *, before: str | None = None, after: str | None = None, grace: str) -> JoinWindows:
        """Windows of so much on both sides, such as "10s", unless `before` or `after` say otherwise.

        Either may be negative, as in `before="-5s"`: then the right record must be so much later at least.
        """
        return JoinWindows(before or difference, after or difference, grace)
