"""Windows: how near two records of a join must be in time, and which times are aggregated together."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls


@checks_calls
@dataclass(frozen=True)
class JoinWindows:
    """From how much earlier to how much later than the left record the right one may be, both ends included.

    `grace` is how far stream time may be beyond that before a record is late.
    """

    before: str
    after: str
    grace: str | None

    @staticmethod
    def of(
        difference: str, *, before: str | None = None, after: str | None = None, grace: str | None = None
    ) -> JoinWindows:
        """Windows of so much on both sides, such as "10s", unless `before` or `after` say otherwise.

        Either may be negative, as in `before="-5s"`: then the right record must be so much later at least.
        """
        return JoinWindows(before or difference, after or difference, grace)


@checks_calls
@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size, that begin every so often since 1970; their end is not part of them.

    `grace` is how far stream time may be beyond a window's end before records are late for it.
    """

    size: str
    advance: str | None
    grace: str | None

    @staticmethod
    def of(size: str, *, advance: str | None = None, grace: str | None = None) -> TimeWindows:
        """Windows one after the other, or, where they `advance` by less than their size, overlapping ones."""
        return TimeWindows(size, advance, grace)


@checks_calls
@dataclass(frozen=True)
class SlidingWindows:
    """The windows in which records differ by so much at most: those that end at a record, or begin behind one.

    Both ends are part of them. `grace` is as in `TimeWindows`.
    """

    difference: str
    grace: str | None

    @staticmethod
    def of(difference: str, *, grace: str | None = None) -> SlidingWindows:
        """Windows of records that differ by at most this."""
        return SlidingWindows(difference, grace)


@checks_calls
@dataclass(frozen=True)
class SessionWindows:
    """Sessions: records of which each is no more than a gap behind another."""

    gap: str
    grace: str | None

    @staticmethod
    def of(gap: str, *, grace: str | None = None) -> SessionWindows:
        """Sessions that end after so much time without a record."""
        return SessionWindows(gap, grace)


@checks_calls
@dataclass(frozen=True)
class Suppressed:
    """When the rows of windows are there."""

    @staticmethod
    def until_window_closes() -> Suppressed:
        """Once, when stream time has closed their window."""
        return Suppressed()
