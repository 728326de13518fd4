"""The bench on a device that copies: all modes, their copies, and the plain copy beside them."""

from __future__ import annotations

import random

import pytest
from staging_fakes import FakeDevice, FakeEvent

from mmlab.bench.staging import timing
from mmlab.bench.staging.cases import SEPARATE, TOGETHER, Case
from mmlab.bench.staging.timing import measure, overhead
from mmlab.staging import MODES, leases

COPIES = {
    SEPARATE: {"pageable": 1, "pin-after": 2, "pinned": 1, "pool": 1, "direct": 0},
    TOGETHER: {"pageable": 0, "pin-after": 1, "pinned": 1, "pool": 1, "direct": 0},
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that was waited for took its time too, and nobody finishes thousands of small ones."""

    def seconds_since(self: FakeEvent, start: FakeEvent) -> float:
        return 0.25 * max(1, len(self.copies))

    monkeypatch.setattr(FakeEvent, "seconds_since", seconds_since)
    monkeypatch.setattr(timing, "OVERHEAD_CALLS", 5)
    monkeypatch.setattr(leases, "LEAK_S", 0.0)


def test_rows_of_a_device_say_copies_pinned_and_the_rate_of_the_copy() -> None:
    for items, copies in COPIES.items():
        device = FakeDevice()
        case = Case(3, "bfloat16", 16, items)
        rows = measure(case, device, rounds=5, draw=random.Random(0))
        assert [row["mode"] for row in rows] == list(MODES)
        assert {row["mode"]: row["copies"] for row in rows} == copies
        for row in rows:
            assert row["copied_nbytes"] == row["copies"] * case.nbytes  # type: ignore[operator]
            assert row["pinned"] == (row["mode"] != "pageable")
            assert not row["in_place"]
            parts = row["mode"] == "direct" and items == SEPARATE  # a copy for each image
            assert row["over_plain"] == (3.0 if parts else 1.0)
            assert row["h2d_gb_per_s"] == case.nbytes / (0.75 if parts else 0.25) / 1e9
            assert row["plain_gb_per_s"] == case.nbytes / 0.25 / 1e9
        assert device.faults == []


def test_an_empty_batch_is_measured_in_every_mode() -> None:
    rows = overhead(FakeDevice(), rounds=5, draw=random.Random(0))
    one, two = ([row for row in rows if row["images"] == count] for count in (1, 2))
    here = {"direct": 1}  # these do not lie in registered memory
    assert {row["mode"]: row["copies"] for row in one} == COPIES[TOGETHER] | here
    assert {row["mode"]: row["copies"] for row in two} == COPIES[SEPARATE] | here
    assert all(row["stage_s"] > 0 for row in rows)  # type: ignore[operator]
