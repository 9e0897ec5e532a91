"""Retry policies: who is tried again, and after how long. Randomness and time come from the caller."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Retry
from perdure.errors import InvalidDefinition, MaxRetriesExceeded, NonRetryable, UnstorableValue

durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30))
policies = st.builds(
    lambda shorter, longer, **others: Retry(initial=min(shorter, longer), maximum=max(shorter, longer), **others),
    shorter=durations,
    longer=durations,
    attempts=st.integers(1, 10_000),
    multiplier=st.floats(1, 1e6, allow_nan=False),
    jitter=st.floats(0, 1),
)
attempts = st.integers(1, 10_000)
chances = st.floats(0, 1, exclude_max=True)


def microseconds(duration: timedelta | float | None) -> int:
    assert isinstance(duration, timedelta)
    return duration // timedelta(microseconds=1)


@given(policies, attempts, chances)
def test_a_backoff_is_never_negative_and_never_far_beyond_the_maximum(
    policy: Retry, attempt: int, chance: float
) -> None:
    backoff = policy.pause_us(attempt, chance)
    assert 0 <= backoff <= microseconds(policy.maximum) * (1 + policy.jitter / 2) + 1


@given(policies, attempts)
def test_in_the_middle_of_the_jitter_is_the_plain_backoff(policy: Retry, attempt: int) -> None:
    exponent = min(attempt - 1, 1_000)
    factor = math.inf if exponent * math.log10(policy.multiplier) > 300 else policy.multiplier**exponent
    initial, maximum = microseconds(policy.initial), microseconds(policy.maximum)
    expected = 0 if initial == 0 else min(initial * factor, maximum)
    if attempt - 1 == exponent or policy.multiplier == 1 or factor == math.inf or initial == 0:
        assert policy.pause_us(attempt, 0.5) == pytest.approx(expected, rel=1e-9, abs=1)


@given(policies, attempts, chances)
def test_later_backoffs_are_not_shorter(policy: Retry, attempt: int, chance: float) -> None:
    assert policy.pause_us(attempt, chance) <= policy.pause_us(attempt + 1, chance) + 1


@given(policies, attempts, chances)
def test_jitter_spreads_by_half_of_itself_to_either_side(policy: Retry, attempt: int, chance: float) -> None:
    plain = policy.pause_us(attempt, 0.5)
    assert abs(policy.pause_us(attempt, chance) - plain) <= plain * policy.jitter / 2 + 2


@given(policies, attempts)
def test_attempts_counts_the_first_try(policy: Retry, attempt: int) -> None:
    assert policy.again(attempt, OSError()) is (attempt < policy.attempts)


def test_the_defaults_are_three_attempts_from_100_ms_doubling() -> None:
    policy = Retry()
    assert [policy.pause_us(attempt, 0.5) for attempt in (1, 2, 3)] == [100_000, 200_000, 400_000]
    assert policy.pause_us(100, 0.5) == 300_000_000
    assert [policy.again(attempt, ValueError()) for attempt in (1, 2, 3)] == [True, True, False]


def test_without_a_first_pause_there_is_never_one_however_many_attempts() -> None:
    policy = Retry(attempts=5_000, initial=timedelta(0), multiplier=10)
    assert policy.pause_us(4_999, 0.9) == 0


@pytest.mark.parametrize(
    "hopeless",
    [
        NonRetryable("no"),
        MaxRetriesExceeded("no"),
        UnstorableValue("no"),
        MemoryError(),
        KeyboardInterrupt(),
        SystemExit(),
    ],
)
def test_some_errors_are_never_tried_again(hopeless: BaseException) -> None:
    assert not Retry(attempts=9, retry_on=(BaseException,)).again(1, hopeless)
    assert not Retry(attempts=9, recoverable=lambda _: True).again(1, hopeless)


def test_users_mark_their_own_errors_as_not_retryable() -> None:
    class CardStolen(NonRetryable): ...

    assert not Retry(attempts=9).again(1, CardStolen())


def test_lists_of_exceptions_decide() -> None:
    policy = Retry(attempts=9, retry_on=(OSError, KeyError), give_up_on=(FileNotFoundError,))
    assert policy.again(1, ConnectionError())
    assert policy.again(1, KeyError())
    assert not policy.again(1, FileNotFoundError())
    assert not policy.again(1, ValueError())


def test_own_functions_take_over() -> None:
    policy = Retry(
        attempts=3, recoverable=lambda error: "again" in str(error), delay=lambda n: timedelta(seconds=n * 7)
    )
    assert policy.again(1, ValueError("again please"))
    assert not policy.again(1, OSError("no"))
    assert not policy.again(3, ValueError("again please"))
    assert policy.pause_us(2, 0.9) == 14_000_000
    assert Retry(delay=lambda _: timedelta(seconds=-5)).pause_us(1, 0.5) == 0


def test_never_is_one_attempt() -> None:
    assert Retry.never().attempts == 1
    assert not Retry.never().again(1, OSError())


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 2.5},
        {"attempts": True},
        {"initial": timedelta(seconds=-1)},
        {"maximum": timedelta(seconds=-1)},
        {"initial": -5},
        {"initial": "5"},
        {"initial": True},
        {"initial": math.nan},
        {"initial": math.inf},
        {"maximum": 1e300},
        {"multiplier": 0.5},
        {"multiplier": math.nan},
        {"multiplier": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": math.nan},
        {"retry_on": [ValueError]},
        {"retry_on": "ValueError"},
        {"give_up_on": (ValueError, 5)},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        Retry(**wrong)
    assert next(iter(wrong)) in str(caught.value)


def test_durations_are_timedeltas_or_seconds() -> None:
    policy = Retry(initial=0.5, maximum=20, jitter=0)
    assert policy == Retry(initial=timedelta(milliseconds=500), maximum=timedelta(seconds=20), jitter=0)
    assert [policy.pause_us(attempt, 0.5) for attempt in (1, 2, 7)] == [500_000, 1_000_000, 20_000_000]
    assert Retry(delay=lambda attempt: attempt * 1.5).pause_us(2, 0.5) == 3_000_000


def test_a_long_first_pause_is_not_cut_short_in_silence() -> None:
    policy = Retry(initial=timedelta(minutes=10), jitter=0)
    assert [policy.pause_us(attempt, 0.5) for attempt in (1, 2)] == [600_000_000, 600_000_000]
    assert Retry(initial=1, jitter=0).pause_us(20, 0.5) == 300_000_000
    with pytest.raises(InvalidDefinition, match="initial is longer than maximum"):
        Retry(initial=timedelta(minutes=10), maximum=timedelta(minutes=5))


class Busy(Exception):
    def __init__(self, retry_after_s: object) -> None:
        self.retry_after_s = retry_after_s


@given(policies, attempts, chances, st.floats(0, 24 * 3600))
def test_a_pause_that_an_error_asks_for_is_made_if_it_is_longer(
    policy: Retry, attempt: int, chance: float, seconds: float
) -> None:
    own = policy.pause_us(attempt, chance)
    assert policy.pause_us(attempt, chance, Busy(seconds)) == max(own, round(seconds * 1_000_000))


@pytest.mark.parametrize(
    ("asked", "seconds"), [(-1, 0), (math.nan, 0), (None, 0), ("soon", 0), (True, 1), (math.inf, 86_400), (1e9, 86_400)]
)
def test_no_pause_is_made_that_makes_no_sense_or_never_ends(asked: object, seconds: int) -> None:
    assert Retry(initial=timedelta(0)).pause_us(1, 0.5, Busy(asked)) == seconds * 1_000_000
    assert Retry(initial=timedelta(0)).pause_us(1, 0.5, ValueError()) == 0
