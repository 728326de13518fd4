"""What memory there is: the tightest of the machine and every cgroup above this process."""

from __future__ import annotations

from pathlib import Path

from mmlab.measure import capacity


def fake_cgroup(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_tightest_cgroup_of_either_version_counts(tmp_path: Path) -> None:
    fake_cgroup(
        tmp_path,
        {
            "proc/cgroup": "4:memory:/a/b\n1:cpu:/\n0::/x/y\n",
            "fs/x/y/memory.max": "max\n",
            "fs/x/y/memory.current": "5\n",
            "fs/x/y/memory.stat": "inactive_file 0\n",
            "fs/x/memory.max": "1000\n",
            "fs/x/memory.current": "400\n",
            "fs/x/memory.stat": "anon 1\ninactive_file 100\n",
            "fs/memory/a/b/memory.limit_in_bytes": "800\n",
            "fs/memory/a/b/memory.usage_in_bytes": "700\n",
            "fs/memory/a/b/memory.stat": "total_inactive_file 50\n",
            "fs/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
            "fs/memory/memory.usage_in_bytes": "700\n",
            "fs/memory/memory.stat": "",
        },
    )
    usage = capacity._cgroup_usage(tmp_path / "proc", tmp_path / "fs")
    assert sorted(usage) == [(800, 650), (1000, 300)]


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert capacity._cgroup_usage(tmp_path, tmp_path) == []
    assert 0 < capacity.available_nbytes() <= capacity.limit_nbytes()


def test_bytes_in_words() -> None:
    assert capacity.gib_text(3 << 29) == "1.50 GiB"
    assert capacity.gib_text(77_070_336) == "73.5 MiB"
