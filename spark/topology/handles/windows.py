"""Windows of time, for joins of streams and for aggregates."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls


@checks_calls
@dataclass(frozen=True)
class JoinWindows:
    """The window of a join: the right record may be from `before` earlier to `after` later than the left one.

    Both ends are included. A record is late once stream time has passed the window by more than `grace`.
    """

    before: str
    after: str
    grace: str | None

    @staticmethod
    def of(
        difference: str, *, before: str | None = None, after: str | None = None, grace: str | None = None
    ) -> JoinWindows:
        """A window of `difference`, such as "10s", on both sides; `before` and `after` replace it on one side.

        Either may be negative: with `before="-5s"` the right record must be at least 5 seconds later.
        """
        return JoinWindows(before or difference, after or difference, grace)


@checks_calls
@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size that begin at multiples of `advance` since 1970. A window excludes its end.

    A record is late for a window once stream time has reached the window's end plus `grace`.
    """

    size: str
    advance: str | None
    grace: str | None

    @staticmethod
    def of(size: str, *, advance: str | None = None, grace: str | None = None) -> TimeWindows:
        """Tumbling windows; with an `advance` below the size, hopping windows, which overlap."""
        return TimeWindows(size, advance, grace)


@checks_calls
@dataclass(frozen=True)
class SlidingWindows:
    """Windows of length `difference` that end at a record, or begin one millisecond after one.

    They include both ends. `grace` is as in `TimeWindows`.
    """

    difference: str
    grace: str | None

    @staticmethod
    def of(difference: str, *, grace: str | None = None) -> SlidingWindows:
        """Windows of records whose event times differ by at most `difference`."""
        return SlidingWindows(difference, grace)


@checks_calls
@dataclass(frozen=True)
class SessionWindows:
    """Sessions: records whose event times have no gap longer than `gap` between them."""

    gap: str
    grace: str | None

    @staticmethod
    def of(gap: str, *, grace: str | None = None) -> SessionWindows:
        """Sessions that end after a `gap` without a record."""
        return SessionWindows(gap, grace)


@checks_calls
@dataclass(frozen=True)
class Suppressed:
    """When the rows of windows appear."""

    @staticmethod
    def until_window_closes() -> Suppressed:
        """Once, when stream time has closed their window."""
        return Suppressed()
