"""Addresses where no engine answers: a clear error within the timeout, and nothing left open."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from arena_pipeline_parts import frozen
from pipeline_parts import script, socket_directory

from mmlab import TransportError, UsageError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.attached import ask

WITHIN_S = 2.0


@pytest.fixture(autouse=True)
def nothing_is_left(leftovers: Callable[..., list[str]], echo: Pipeline) -> Iterator[None]:
    leftovers.reset()  # type: ignore[attr-defined]
    yield
    assert not leftovers("fds", "threads", "processes")


@pytest.mark.parametrize(
    "address",
    [None, 7, b"/tmp/x", "", "a\0b", "tcp://127.0.0.1:9", "/" + "x" * 107, "/" + "ü" * 60],
)
def test_what_is_no_address_is_a_usage_error(address: object) -> None:
    with pytest.raises(UsageError, match="address: "):
        Pipeline.attach(address)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"max_inflight_nbytes": 0}, {"insecure_pickle": 1}])
def test_settings_are_checked_before_anything_is_joined(
    echo: Pipeline, changes: dict[str, int]
) -> None:
    with pytest.raises(UsageError, match=next(iter(changes))):
        Pipeline.attach(echo.address, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="start_timeout"):
        Pipeline.attach(echo.address, start_timeout=0)


def refused(address: str, words: str, timeout: float = WITHIN_S) -> None:
    begun = time.monotonic()
    with pytest.raises(TransportError, match=words) as got:
        Pipeline.attach(address, max_inflight_nbytes=1 << 20, start_timeout=timeout)
    assert time.monotonic() - begun < timeout + 1
    assert f"cannot attach to {address}: " in str(got.value)
    assert str(got.value).count(";") >= 1  # what to do follows


def test_nothing_a_file_and_a_folder_are_no_engine(tmp_path: Path) -> None:
    refused(str(tmp_path / "none"), "no engine is there")
    refused(str(tmp_path / "none" / "deeper"), "no engine is there")
    (tmp_path / "file").write_text("x")
    refused(str(tmp_path / "file"), "it is no socket")
    refused(str(tmp_path), "it is no socket")


def test_another_socket_of_the_pipeline_is_no_address(echo: Pipeline) -> None:
    refused(str(socket_directory(echo) / "req"), "nobody answers there .*Protocol wrong type")


def test_the_socket_of_a_dead_engine_is_no_address(tmp_path: Path) -> None:
    path = str(tmp_path / "ctl")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
    refused(path, "nobody answers there .*refused.*whose engine runs")


def test_an_engine_that_does_nothing_is_waited_for_as_long_as_asked(echo: Pipeline) -> None:
    with frozen(echo):
        refused(echo.address, "did not answer in time; raise start_timeout", 0.5)


@contextmanager
def listening(path: Path, *answers: list[bytes]) -> Iterator[str]:
    """Somebody who says this, connection for connection, and hangs up only in the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)
        connections: list[socket.socket] = []

        def answer() -> None:
            for messages in answers:
                sock, _ = listener.accept()
                connections.append(sock)
                for message in messages:
                    sock.send(message)
                if not messages:
                    sock.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield str(path)
        finally:
            thread.join(10)
            for sock in connections:
                sock.close()


def packed(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([packed(type="welcome", protocol=99, anything=1)], "protocol 99, this mmlab 1; use the"),
        ([packed(type="welcome", protocol=1)], "unreadable"),
        ([b"HTTP/1.1 400 Bad Request"], "unreadable"),
        ([packed(type="stop")], "answered with Stop"),
        ([packed(type="failed", error="E", message="too many", trace="")], "refused: too many"),
        ([], "has ended, or hung up"),
    ],
)
def test_who_answers_otherwise_is_no_engine_of_ours(
    tmp_path: Path, answer: list[bytes], words: str
) -> None:
    with listening(tmp_path / "s", answer) as address:
        refused(address, words)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("nothing", "did not answer in time"),
        ("the end", "has ended, or hung up"),
        ("another engine", "another engine listens there now"),
    ],
)
def test_an_engine_that_changes_its_mind_between_hello_and_join(
    tmp_path: Path, echo: Pipeline, second: str, words: str
) -> None:
    welcome = ask(echo.address, time.monotonic() + 5)
    other = msgspec.structs.replace(welcome.ready, pid=os.getpid())
    said = msgspec.msgpack.encode(welcome)
    changed = msgspec.msgpack.encode(msgspec.structs.replace(welcome, ready=other))
    answers = {"nothing": [said], "the end": [], "another engine": [changed]}[second]
    with listening(tmp_path / "s", [said], answers) as address:
        refused(address, words, 1.0)


FEW = """
import os, resource, sys
import mmlab
with mmlab.Pipeline.attach(sys.argv[1], max_inflight_nbytes=1 << 20) as pipe:
    pipe.submit_items(None).result(5)
before, said = len(os.listdir("/proc/self/fd")), []
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(before, before + 40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        with mmlab.Pipeline.attach(sys.argv[1], max_inflight_nbytes=1 << 20) as pipe:
            pipe.submit_items(None).result(5)
        said.append("served")
    except mmlab.TransportError as error:
        said.append("named" if "ulimit -n" in str(error) else str(error))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(os.listdir("/proc/self/fd")) == before
print(" ".join(said))
"""


def test_few_descriptors_are_named_or_enough_and_none_is_left_open(echo: Pipeline) -> None:
    with script(FEW, echo.address) as run:
        out, err = run.communicate(timeout=40)
    words = out.split()
    assert set(words) == {"named", "served"}, out + err
    assert words == sorted(words)  # with one limit and more it is served
