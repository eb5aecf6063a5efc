"""examples/export: the commands of its README run, and what they print is right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import wave
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from rammer.vdevice.toolchain import c_compiler

EXAMPLES = Path(__file__).parents[2] / "examples" / "export"
SECTIONS = dict(re.findall(r"^## (.*?)\n\n```sh\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.M | re.S))


def run(section: str, folder: Path) -> str:
    """Run a section's commands in a shell, and return what they print."""
    commands = re.sub(r"^rammer ", f"{sys.executable} -m rammer ", SECTIONS[section], flags=re.M)
    commands = re.sub(r"^python ", f"{sys.executable} ", commands, flags=re.M)
    done = subprocess.run(["sh", "-ec", commands], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the examples with the voice detector exported and built, and half a second of a tone."""
    needs("cmake", "cc")
    copy = tmp_path_factory.mktemp("examples") / "export"
    shutil.copytree(EXAMPLES, copy)
    run("Models", copy)
    sound = np.zeros(16000, np.int16)
    sound[4096:12288] = 16000 * np.sin(0.2 * np.arange(8192))
    with wave.open(str(copy / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(sound.tobytes())
    return copy


def test_c_finds_the_tone_in_a_wav_file(folder: Path) -> None:
    found = re.findall(r"^([\d.]+) s: ([\d.]+)$", run("C: a WAV file", folder), re.M)
    assert len(found) == 16000 // 512
    heard = {float(at) for at, speech in found if float(speech) > 0.5 and float(at) > 0.1}
    begin, end = 4096 / 16000, 12288 / 16000
    assert all(begin <= at <= end + 0.1 for at in heard) and len(heard) >= 12


@pytest.mark.slow
def test_cpp_follows_two_streams(folder: Path) -> None:
    needs("c++")
    assert run("C++ with CMake", folder).splitlines()[-1] == "loud 0.99, silent 0.00"


@pytest.mark.slow
def test_rust_calls_it(folder: Path) -> None:
    needs("rustc")
    assert run("Rust", folder).splitlines()[-1] == "frame 19: 0.99"


@pytest.mark.slow
def test_ctypes_calls_it(folder: Path) -> None:
    assert run("Python without rammer", folder).splitlines()[-1] == "frame 19: 0.99"


@pytest.fixture(scope="module")
def printed_by_node(folder: Path) -> str:
    needs("node")
    if c_compiler().family != "zig":
        pytest.skip("only zig compiles for WebAssembly")
    return run("WebAssembly in Node", folder)


@pytest.mark.slow
def test_node_classifies_an_image(printed_by_node: str) -> None:
    assert printed_by_node.splitlines()[-1] == "horizontal"


@pytest.mark.slow
def test_a_page_in_chromium_classifies_an_image(folder: Path, printed_by_node: str, tmp_path: Path) -> None:
    needs("chromium")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        headless = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom")
        page = f"http://127.0.0.1:{server.server_port}/page.html"
        command = ["chromium", *headless, "--virtual-time-budget=20000", page]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        server.shutdown()
    assert "<p>vertical</p>" in shown
