"""The table of strategies: its order, its names, and that every part it names exists."""

from __future__ import annotations

import dataclasses

import pytest

from mmlab import UsageError
from mmlab.pipeline import serializers
from mmlab.staging import MODES
from mmlab.strategies import REGISTRY, Strategy, resolve, strategies
from mmlab.transports import INSECURE
from mmlab.transports import REGISTRY as TRANSPORTS


def test_the_order_of_tables_and_plots_is_fixed() -> None:
    assert list(strategies()) == [
        *("pickle", "msgpack-inline", "msgpack", "msgpack-pinned", "msgpack-pool", "torch-shm"),
        *("arena", "arena-direct", "arena-uint8"),
    ]


@pytest.mark.parametrize("strategy", strategies().values(), ids=lambda s: s.name)
def test_every_part_that_a_strategy_names_exists(strategy: Strategy) -> None:
    assert REGISTRY[strategy.name] is strategy
    assert strategy.serializer in serializers._TABLE
    assert strategy.transport in TRANSPORTS
    assert strategy.staging in MODES
    assert strategy.stands_for and strategy.copies
    unpickles = strategy.serializer in serializers.INSECURE or strategy.transport in INSECURE
    assert strategy.insecure == unpickles
    assert strategy.needs_gpu == (strategy.staging != "pageable")


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown strategy 'msgpak': did you mean 'msgpack'\?"):
        resolve("msgpak")
    with pytest.raises(UsageError, match="msgpack-pool, torch-shm, arena, arena-direct"):
        resolve(7)  # type: ignore[arg-type]


def test_a_strategy_of_ones_own_is_taken_as_it_is() -> None:
    own = dataclasses.replace(resolve("msgpack"), name="own", transport="tcp")
    assert resolve(own) is own


def test_any_way_can_have_another_payload_and_nothing_else_changes() -> None:
    for name, strategy in strategies().items():
        assert resolve(name, "uint8") == dataclasses.replace(strategy, payload="uint8")
        assert resolve(name).payload == ("uint8" if name == "arena-uint8" else "float32")
    assert (
        dataclasses.replace(resolve("arena"), payload="uint8").copies
        == "0 to 1; 1 to 2 for items made elsewhere"
    )


def test_the_table_cannot_be_changed_through_what_is_handed_out() -> None:
    strategies().clear()
    assert strategies()
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve("msgpack").copies = "0"  # type: ignore[misc]
