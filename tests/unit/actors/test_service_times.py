"""Early refusal: only on enough evidence, and never for ever."""

from actors.service_times import PROBE_EVERY, SAMPLES_KEPT, SAMPLES_MIN, ServiceTimes


def noted(nanoseconds: int, count: int = SAMPLES_MIN) -> ServiceTimes:
    times = ServiceTimes()
    for _ in range(count):
        times.note(int, nanoseconds)
    return times


def test_too_few_samples_refuse_nobody() -> None:
    assert noted(100, SAMPLES_MIN - 1).suffices(int, 1)


def test_less_time_than_the_median_is_refused() -> None:
    times = noted(100)
    assert times.median_ns(int) == 100
    assert times.suffices(int, 100) and not times.suffices(int, 99)
    assert times.suffices(str, 1), "every kind has its own times"


def test_now_and_then_one_goes_through_so_that_the_estimate_can_recover() -> None:
    times = noted(100)
    assert [times.suffices(int, 1) for _ in range(PROBE_EVERY)] == [*[False] * (PROBE_EVERY - 1), True]
    for _ in range(SAMPLES_KEPT):
        times.note(int, 1)
    assert times.suffices(int, 1)
