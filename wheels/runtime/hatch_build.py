"""Divide rammer/ into two distributions, and describe all of them: version, requirements, links, bill of materials.

The compiler's project, in the root, the runtime's, beside this file, and those of the plugins and the testing tools use
it. The source distribution of each contains it, so a wheel comes out the same from a checkout and from a source
distribution.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from os.path import normpath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).resolve().parent
ROOT = next(folder for folder in (HERE, *HERE.parents) if (folder / "rammer" / "about.py").is_file())
ABOUT = runpy.run_path(str(ROOT / "rammer" / "about.py"))
VERSION, COMPILER, RUNTIME = ABOUT["VERSION"], ABOUT["COMPILER"], ABOUT["RUNTIME"]
_SITE = "https://rammer.example"  # until the project has its place: then only this line changes
URLS = {
    "Homepage": _SITE,
    "Documentation": f"{_SITE}/docs",
    "Source": f"{_SITE}/source",
    "Issues": f"{_SITE}/issues",
    "Changelog": f"{_SITE}/source/CHANGELOG.md",
    "Security": f"{_SITE}/source/SECURITY.md",
}  # links of READMEs are relative to Source

# What the runtime has of rammer/; the compiler has the rest. A pattern is a folder with all below it, or matches files
# of one folder. tests/end2end/test_installs.py checks that these modules import none of the others.
FILES = (
    *("*.py", "*.pyi", "py.typed"),
    *("cli/__init__.py", "cli/run_only.py", "cli/running.py"),
    "runtime/",
    *("ir/__init__.py", "ir/device.py", "ir/expr.py", "ir/graph.py", "ir/index.py", "ir/instruction.py"),
    *("ir/kernel.py", "ir/operator.py", "ir/plan.py", "ir/program.py", "ir/remembered.py", "ir/software_pipeline.py"),
    *("ir/tensor.py", "ir/tile.py"),
    *("vdevice/*.py", "vdevice/image/", "vdevice/toolchain/"),
    *("vdevice/cpu/__init__.py", "vdevice/cpu/cgroup.py", "vdevice/cpu/host.py", "vdevice/cpu/plugin.py"),
    *("vdevice/cpu/runtime/", "vdevice/cpu/codegen/__init__.py", "vdevice/cpu/codegen/amx.py"),
    *("vdevice/cpu/codegen/dots.py", "vdevice/cpu/codegen/vnni.py"),
    *("vdevice/ipu/__init__.py", "vdevice/ipu/plugin.py"),
    *("vdevice/cuda/", "vdevice/rocm/", "vdevice/simt/*.py", "vdevice/simt/runtime/"),
    *("vdevice/simt/codegen/__init__.py", "vdevice/simt/codegen/table.py", "vdevice/simt/codegen/waits.py"),
    *("vdevice/simt/codegen/mma.py", "vdevice/simt/codegen/wgmma.py"),  # instructions, which a spec lists
)
COMPILES = (
    *("vdevice/interpreter.py", "vdevice/profiles.py", "vdevice/supersteps.py", "vdevice/image/placement.py"),
    *("vdevice/rocm/prelude.py", "vdevice/simt/decode.py"),
    *("vdevice/cuda/driver.c", "vdevice/rocm/driver.c"),
    *("vdevice/rocm/text/math.h", "vdevice/rocm/text/matrix_cores.h"),
    *("vdevice/rocm/text/primitives.h", "vdevice/rocm/text/qualifiers.h"),
)  # of these folders, and not needed to run programs


def is_runtime(file: str) -> bool:
    """Check whether the runtime has a file; its path is relative to rammer/."""
    return file not in COMPILES and any(
        file.startswith(pattern)
        if pattern.endswith("/")
        else fnmatchcase(file, pattern) and file.count("/") == pattern.count("/")
        for pattern in FILES
    )


def files_of(distribution: str) -> Iterator[str]:
    """Yield the paths below rammer/ of a distribution's files. Plugins and tools have none."""
    for path in sorted((ROOT / "rammer").rglob("*")):
        file = path.relative_to(ROOT / "rammer").as_posix()
        if path.is_file() and "__pycache__" not in file and distribution == (RUNTIME if is_runtime(file) else COMPILER):
            yield file


class Described(MetadataHookInterface):
    """Fill in what depends on the version, or on where the project's files are published."""

    def update(self, metadata: dict[str, Any]) -> None:
        base = {RUNTIME: [], COMPILER: [RUNTIME]}.get(metadata["name"], [COMPILER])
        metadata["dependencies"] = [*self.config.get("dependencies", []), *(f"{name}=={VERSION}" for name in base)]
        metadata["urls"] = URLS
        project, source = Path(self.root).resolve(), URLS["Source"]

        def published(link: re.Match[str]) -> str:
            return f"]({source}/{normpath(project.relative_to(ROOT) / link[1])})"

        readme = (project / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", published, readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Divided(BuildHookInterface):
    """Put a distribution's part of rammer/ into its wheel, with a software bill of materials (PEP 770)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = self.metadata.core.name
        if self.target_name == "sdist":  # the runtime's files lie outside of its project
            own = () if ROOT == HERE or name == COMPILER else files_of(RUNTIME) if name == RUNTIME else ["about.py"]
            always = build_data["force_include"]  # pyproject.toml, README, LICENSE and this file
            build_data["force_include"] = {str(Path(path).resolve()): file for path, file in always.items()}  # no links
            build_data["force_include"] |= {str(ROOT / "rammer" / file): f"rammer/{file}" for file in own}
        elif version != "editable":
            build_data["force_include"] |= {str(ROOT / "rammer" / file): f"rammer/{file}" for file in files_of(name)}
            build_data["force_include"] |= {str(ROOT / "rammer_viz"): "rammer_viz"} if name == COMPILER else {}
            self._folder = TemporaryDirectory()
            bill = Path(self._folder.name, f"{name}.cdx.json")
            bill.write_text(json.dumps(self._bill(name), indent=1, sort_keys=True), encoding="utf-8")
            build_data["sbom_files"].append(str(bill))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _bill(self, name: str) -> dict[str, Any]:
        """Return the bill of materials, in CycloneDX: the distribution, and what it requires. Wheels vendor nothing."""

        def purl(package: str, version: str = "") -> str:
            return f"pkg:pypi/{package.lower().replace('_', '-')}{version and '@'}{version}"

        own = {"type": "library", "name": name, "version": VERSION, "bom-ref": purl(name, VERSION)}
        needed = {re.split(r"[^\w.-]", text, maxsplit=1)[0]: text for text in self.metadata.core.dependencies}
        components = [
            {
                "type": "library",
                "name": package,
                "bom-ref": purl(package),
                "purl": purl(package),
                "scope": "required",
                "properties": [{"name": "requirement", "value": text}],
            }
            for package, text in sorted(needed.items())
        ]
        return {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, purl(name, VERSION))}",  # equal sources are equal wheels
            "version": 1,
            "metadata": {
                "component": {**own, "purl": purl(name, VERSION), "licenses": [{"license": {"id": "Apache-2.0"}}]}
            },
            "components": components,
            "dependencies": [
                {"ref": purl(name, VERSION), "dependsOn": [c["bom-ref"] for c in components]},
                *({"ref": c["bom-ref"]} for c in components),
            ],
        }
