"""Format Markdown with one sentence a line and at most 120 columns: `python -m benchmarks.pages.markdown FILE…`.

Such lines make diffs of prose readable. Tables, code, headings, quotes and links keep their lines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120
SPAN = re.compile(r"!?\[[^\]]*\]\([^)\s]*\)|`[^`]*`")  # links and code, in which spaces and periods mean nothing
END = re.compile(r"[.!?][\"')*_]{0,3}\s+(?=[A-Z\"'(*_\d\x00#…])")  # of a sentence
SHORT = ("e.g.", "i.e.", "vs.", "Eq.", "cf.")
ITEM = re.compile(r"\s*(?:[*-]|\d+\.)\s+")


def sentences(text: str) -> list[str]:
    """Split a paragraph into its sentences."""
    spans: list[str] = []

    def hide(match: re.Match[str]) -> str:
        spans.append(match[0])
        return f"\x00{len(spans) - 1}\x01"

    hidden, found, start = SPAN.sub(hide, " ".join(text.split())), [], 0
    for match in END.finditer(hidden):
        sentence = hidden[start : match.end()].rstrip()
        if not sentence.endswith(SHORT) and sentence.count("(") <= sentence.count(")"):
            found.append(sentence)
            start = match.end()
    found.append(hidden[start:].rstrip())
    return [re.sub("\x00(\\d+)\x01", lambda match: spans[int(match[1])], sentence) for sentence in found if sentence]


def wrapped(sentence: str, width: int) -> Iterator[str]:
    """Break a sentence into lines of at most `width` columns, between words that are not inside a link or code."""
    line = ""
    for word in re.findall(rf"(?:{SPAN.pattern}|\S)+", sentence):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = ""
        line = f"{line} {word}".lstrip()
    yield line


def formatted(text: str) -> str:
    """Return the text with one sentence a line."""
    lines: list[str] = []
    paragraph: list[str] = []
    first = rest = ""
    is_code = in_list = False

    def flush() -> None:
        broken = [line for s in sentences(" ".join(paragraph)) for line in wrapped(s, WIDTH - len(rest))]
        lines.extend((rest if n else first) + line for n, line in enumerate(broken))
        paragraph.clear()

    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        is_fixed = not line.strip() or line.startswith(("|", "#", ":::", "<", ">", "!["))
        if line.startswith("```"):
            flush()
            is_code = not is_code
            lines.append(line)
        elif is_code or (indent >= 4 and not paragraph and not ITEM.match(line)):
            lines.append(line)
        elif is_fixed:
            flush()
            lines.append(line)
            in_list = in_list and not line.strip()
        elif item := ITEM.match(line):
            flush()
            first, rest, in_list = item[0], " " * len(item[0]), True
            paragraph.append(line[item.end() :].strip())
        else:
            if not paragraph:
                in_list = in_list and indent >= 2
                first = rest = " " * indent if in_list else ""
            paragraph.append(line.strip())
    flush()
    return "\n".join(lines)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(formatted(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
