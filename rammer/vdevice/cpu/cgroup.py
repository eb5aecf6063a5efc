"""Find the CPU time that Linux grants to this process's control group and its ancestors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on CPU time in CPUs (seconds per second), and the file that sets it."""

    cpus: float
    file: str


def cpu_quota(root: Path = Path("/")) -> Quota | None:
    """Return the smallest quota of the process's groups, of cgroup version 1 or 2; None if there is none.

    `root` holds proc/self/cgroup, proc/self/mountinfo and the mounts; tests pass a folder.
    """
    found = [q for mount, group in _groups(root) for q in _quotas(root, mount, group)]
    return min(found, key=lambda q: q.cpus, default=None)


def _groups(root: Path) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield mount points of cgroup hierarchies that may limit the CPU, each with this process's folder there."""
    paths: dict[str, str] = {}  # by controller: "cpu" of version 1, "" of version 2
    for line in system_file(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths |= {name: path for name in controllers.split(",") if name in ("", "cpu")}
    for line in system_file(root / "proc/self/mountinfo").splitlines():
        fields, _, kind = (part.split() for part in line.partition(" - "))
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version1 = kind[0] == "cgroup"
        if version1 and "cpu" not in kind[2].split(","):
            continue
        group = PurePosixPath(paths.get("cpu" if version1 else "", "/"))
        above, mount = (PurePosixPath(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), f)) for f in fields[3:5])
        # A container may see its group's path as on the host, but mount only its own group: the mount is the group.
        inside = group.is_relative_to(above) and ".." not in group.parts
        yield mount, mount / group.relative_to(above) if inside else mount


def _quotas(root: Path, mount: PurePosixPath, group: PurePosixPath) -> Iterator[Quota]:
    """Yield quotas of a group and its ancestors."""
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            return
        here = root / folder.relative_to("/")
        for file, values in (
            ("cpu.max", system_file(here / "cpu.max").split()),
            ("cpu.cfs_quota_us", [system_file(here / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period")]),
        ):
            if len(values) == 2 and all(v.isdecimal() and int(v) > 0 for v in values):  # else "max", or -1
                yield Quota(int(values[0]) / int(values[1]), str(folder / file))


def system_file(path: str | Path) -> str:
    """Return the text of a small system file, "" if the system lacks it."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
