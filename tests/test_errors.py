"""Errors: which built-in class each one is as well, and messages that help with a misspelt name."""

from __future__ import annotations

import pickle

import pytest

from mmlab import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.EncodeError, TypeError),
        (errors.WireError, ValueError),
        (errors.BatchError, ValueError),
        (errors.UsageError, ValueError),
        (errors.BackpressureTimeout, TimeoutError),
        (errors.TransportError, Exception),
        (errors.EngineError, Exception),
    ],
)
def test_errors_are_one_family_and_the_builtin_that_fits(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, errors.MMLabError)
    assert issubclass(error, builtin)


def test_engine_error_knows_the_exit_code() -> None:
    assert errors.EngineError("it died", 3).exit_code == 3
    assert errors.EngineError("it runs").exit_code is None


def test_errors_survive_a_trip_between_processes() -> None:
    again = pickle.loads(pickle.dumps(errors.BatchError("image.x: no")))
    assert type(again) is errors.BatchError and str(again) == "image.x: no"


def test_unknown_offers_the_close_name_and_all_known_ones() -> None:
    error = errors.unknown("strategy", "msgpak", ["pickle", "msgpack"])
    assert isinstance(error, errors.UsageError)
    assert str(error) == (
        "unknown strategy 'msgpak': did you mean 'msgpack'? known: pickle, msgpack"
    )


def test_unknown_offers_nothing_where_nothing_is_close() -> None:
    assert str(errors.unknown("model", "x", [])) == "unknown model 'x': known: (none)"
