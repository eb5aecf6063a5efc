"""CPU quotas of control groups, in made-up file trees, and the number of vEUs that follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rammer import config
from rammer.errors import RammerError
from rammer.vdevice.cpu import host as cpu_host
from rammer.vdevice.cpu import plugin as cpu_plugin
from rammer.vdevice.cpu.cgroup import Quota, cpu_quota
from rammer.vdevice.cpu.host import choose_num_veus, default_num_veus, host

V2 = "31 24 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "30 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:30 / /sys/fs/cgroup/cpuset rw shared:12 - cgroup cgroup rw,cpuset\n"
)
HYBRID = V1 + "34 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
V1_GROUPS = "9:cpuset:/elsewhere\n4:cpu,cpuacct:{}\n1:name=systemd:/init\n"
V1_CPU = "sys/fs/cgroup/cpu,cpuacct"


def tree(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    at = f"{V1_CPU}{folder}/cpu.cfs_"
    return {f"{at}quota_us": f"{quota}\n", f"{at}period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cpus", "file"),
    [
        pytest.param(
            "0::/\n", V2, {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, "/sys/fs/cgroup/cpu.max", id="v2"
        ),
        pytest.param(
            "0::/a.slice/b.scope\n",
            V2,
            {"sys/fs/cgroup/a.slice/b.scope/cpu.max": "100000 50000", "sys/fs/cgroup/a.slice/cpu.max": "max 100000"},
            2.0,
            "/sys/fs/cgroup/a.slice/b.scope/cpu.max",
            id="v2, the process's own group",
        ),
        pytest.param(
            "0::/a/b/c\n",
            V2,
            {"sys/fs/cgroup/a/b/c/cpu.max": "400000 100000", "sys/fs/cgroup/a/cpu.max": "70000 100000"},
            0.7,
            "/sys/fs/cgroup/a/cpu.max",
            id="v2, a group further out has less",
        ),
        pytest.param(
            "0::/docker/abc\n",
            "31 24 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            {"sys/fs/cgroup/cpu.max": "300000 100000", "sys/fs/cgroup/docker/abc/cpu.max": "1 100"},
            3.0,
            "/sys/fs/cgroup/cpu.max",
            id="v2, a container that sees its path from outside",
        ),
        pytest.param(
            "0::/../../other\n",
            V2,
            {"sys/fs/cgroup/cpu.max": "300000 100000"},
            3.0,
            "/sys/fs/cgroup/cpu.max",
            id="v2, a group beside the namespace",
        ),
        pytest.param(
            V1_GROUPS.format("/"),
            V1,
            v1("", 250_000),
            2.5,
            f"/{V1_CPU}/cpu.cfs_quota_us",
            id="v1, mounted together",
        ),
        pytest.param(
            V1_GROUPS.format("/kube/pod/c"),
            HYBRID,
            v1("", -1) | v1("/kube", -1) | v1("/kube/pod", 20_000, 10_000) | v1("/kube/pod/c", -1),
            2.0,
            f"/{V1_CPU}/kube/pod/cpu.cfs_quota_us",
            id="v1, a group around it",
        ),
        pytest.param(
            V1_GROUPS.format("/x") + "0::/y\n",
            HYBRID,
            v1("/x", 300_000) | {"sys/fs/cgroup/unified/y/cpu.max": "100000 100000"},
            1.0,
            "/sys/fs/cgroup/unified/y/cpu.max",
            id="both versions",
        ),
        pytest.param(
            "0::/a b\n",
            V2.replace("/sys/fs/cgroup", "/odd\\040place"),
            {"odd place/a b/cpu.max": "500000 100000"},
            5.0,
            "/odd place/a b/cpu.max",
            id="names with spaces",
        ),
    ],
)
def test_quotas_are_found(
    groups: str, mounts: str, files: dict[str, str], cpus: float, file: str, tmp_path: Path
) -> None:
    assert cpu_quota(tree(tmp_path, groups, mounts, files)) == Quota(cpus, file)


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        ("", "", {}),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "max 100000\n"}),
        ("0::/a\n", V2, {"sys/fs/cgroup/b/cpu.max": "100 100\n"}),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "100000 0\n"}),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "lots\n"}),
        (V1_GROUPS.format("/"), V1, v1("", -1)),
        (V1_GROUPS.format("/"), V1, {f"{V1_CPU}/cpu.cfs_quota_us": "100000\n"}),
        ("damaged\n4\n", "damaged\n - - cgroup2\n1 2 3 / - cgroup2 a b\n", {}),
    ],
)
def test_without_a_quota_there_is_none(groups: str, mounts: str, files: dict[str, str], tmp_path: Path) -> None:
    assert cpu_quota(tree(tmp_path, groups, mounts, files)) is None


@pytest.mark.parametrize(
    ("cores", "quota", "num_veus"),
    [(4, None, 4), (4, 2.0, 2), (4, 1.5, 1), (4, 0.3, 1), (2, 16.0, 2), (4, 3.99, 3)],
)
def test_the_default_is_one_veu_per_core_that_the_quota_pays_for(
    cores: int, quota: float | None, num_veus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(host(), cpus=tuple(range(2 * cores)), num_cores=cores, quota=quota and Quota(quota, "/some/cpu.max"))
    monkeypatch.setattr(cpu_host, "host", lambda: here)
    with config.override(RAMMER_NUM_VEUS=None):
        found, how = default_num_veus(here)
        assert found == num_veus == choose_num_veus(None, here)
        assert f"{2 * cores} CPUs on {cores} cores" in how
        assert ("/some/cpu.max" in how) == (quota is not None)
        assert choose_num_veus("cpu:7", here) == 7
        text = cpu_plugin.probe()
        assert text.ok and f"vEUs by default: {num_veus} (" in text.reason and how in text.reason
    with config.override(RAMMER_NUM_VEUS="5"):
        assert default_num_veus(here) == (5, "RAMMER_NUM_VEUS=5")
    with config.override(RAMMER_NUM_VEUS="5000"), pytest.raises(RammerError, match="an integer from 1 to 1024"):
        default_num_veus(here)
    with config.override(RAMMER_NUM_VEUS="5000"):
        assert not cpu_plugin.probe().ok
