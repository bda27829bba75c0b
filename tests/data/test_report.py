"""Counts are sums, the table says them, the report stays as it was."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sink.data.report import QueueReport, Telemetry

seconds = st.floats(0.0, 10.0)
fetches = st.lists(st.tuples(seconds, st.integers(0, 1 << 40)), max_size=20)
takes = st.lists(st.tuples(seconds, st.integers(0, 1 << 40), st.integers(0, 16)), max_size=20)


@given(fetches=fetches, takes=takes)
def test_counts(fetches, takes):
    telemetry = Telemetry()
    for fetch in fetches:
        telemetry.fetched(*fetch)
    for take in takes:
        telemetry.taken(*take)
    report = telemetry.report()
    assert (report.batches_produced, report.batches_consumed) == (len(fetches), len(takes))
    assert report.bytes_produced == sum(size for _, size in fetches)
    assert report.bytes_consumed == sum(size for _, size, _ in takes)
    assert report.fetch_seconds == pytest.approx(sum(time for time, _ in fetches))
    assert report.consumer_wait_seconds == pytest.approx(sum(time for time, _, _ in takes))
    depths = [depth for _, _, depth in takes]
    assert report.depths == Counter(depths)
    assert list(report.depths) == sorted(report.depths)
    assert report.mean_depth == pytest.approx(sum(depths) / len(depths) if depths else 0.0)
    slowest = max((time for time, _ in fetches), default=0.0)
    assert report.slowest_fetch_seconds == slowest
    if slowest:
        assert fetches[report.slowest_fetch_batch][0] == slowest
    assert list(telemetry.last_depths) == depths[-5:]


def test_before_the_first_batch():
    report = Telemetry().report()
    assert report == QueueReport()
    assert report.slowest_fetch_batch == -1
    assert report.mean_depth == 0.0
    assert "batch -1" not in str(report)


def test_a_report_does_not_change():
    telemetry = Telemetry()
    telemetry.taken(1.0, 2, 3)
    report = telemetry.report()
    telemetry.taken(1.0, 2, 3)
    assert report.batches_consumed == 1
    assert report.depths == {3: 1}
    assert type(report.depths) is dict
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.batches_consumed = 2
    assert dataclasses.asdict(report)["depths"] == {3: 1}


def test_the_table():
    telemetry = Telemetry()
    for time in (0.001, 0.5, 0.0031):
        telemetry.fetched(time, 1_000_000)
    telemetry.batches_ahead = 2
    telemetry.taken(0.01, 1_000_000, 1)
    telemetry.taken(0.002, 1_000_000, 4)
    telemetry.producer_wait_seconds = 1.25
    telemetry.in_step_because = "because"
    assert [line.split() for line in str(telemetry.report()).splitlines()] == [
        ["batches", "3", "produced", "2", "consumed"],
        ["bytes", "3,000,000", "produced", "2,000,000", "consumed"],
        ["fetched", "ahead", "2", "batches", "because"],
        ["fetching", "0.504", "s", "168.033", "ms", "a", "batch"],
        ["slowest", "fetch", "500.000", "ms", "batch", "1"],
        ["training", "waited", "0.012", "s", "6.000", "ms", "a", "batch"],
        ["queue", "waited", "1.250", "s", "for", "room"],
        ["depth", "at", "a", "take", "2.5", "on", "average", "4", "at", "most"],
    ]


@given(fetches=fetches, takes=takes)
def test_the_table_is_aligned(fetches, takes):
    telemetry = Telemetry()
    for fetch in fetches:
        telemetry.fetched(*fetch)
    for take in takes:
        telemetry.taken(*take)
    lines = str(telemetry.report()).splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert len({len(line[:41].rstrip()) for line in lines}) == 1  # the middle column ends where it does in every line
