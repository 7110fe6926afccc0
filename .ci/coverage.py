"""Reads counts as llvm-cov exports them: the figure of each file and of both crates, and the `unsafe` blocks
and functions that were not reached. With a file: its lines that were not reached. What is `#[cfg(test)]` does not
count. A part of `.ci/coverage`, which says how to call it."""

import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "crates" / name / "src" for name in ("hugefork", "hugefork-kernels", "hugefork-linux", "hugefork-program")]

# What braces and words do not count in.
TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?c?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.DOTALL)
FOR_TESTS = re.compile(r"#\[cfg\((?:a(?:ll|ny)\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*")
UNSAFE = re.compile(r"\bunsafe\s*\{|\bunsafe\s+(?:extern\s+(?:\S+\s+)?)?fn\s+(\w+)[^{;]*\{")


def without_text(source):
    """The source with blanks for comments and literals, each line where it was."""
    return TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def end_of(source, start):
    """Behind the item that begins here: its closing brace, or a semicolon before any brace."""
    depth = 0
    for at in range(start, len(source)):
        if source[at] in "{}":
            depth += 1 if source[at] == "{" else -1
        if depth == 0 and source[at] in "};":
            return at + 1
    return len(source)


class File:
    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(ROOT / "crates"))
        self.source = path.read_text()
        self.bare = without_text(self.source)
        # The lines that are there for tests alone, and the modules.
        self.test_lines, self.test_modules = set(), []
        for found in FOR_TESTS.finditer(self.bare):
            end = end_of(self.bare, found.end())
            self.test_lines.update(range(self.line(found.start()), self.line(end - 1) + 1))
            module = re.match(r"(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", self.bare[found.end() : end])
            if module:
                path = re.search(r'#\[path = "(.*)"\]', self.source[found.start() : end])
                self.test_modules.append(self.path.parent / path[1] if path else self.submodule(module[1]))

    def line(self, at):
        return self.source.count("\n", 0, at) + 1

    def place(self, at):
        """Line and column, in bytes, as the compiler counts them."""
        return self.line(at), len(self.bare[:at].rpartition("\n")[2].encode()) + 1

    def submodule(self, name):
        folder = self.path.parent if self.path.name in ("mod.rs", "lib.rs") else self.path.with_suffix("")
        return folder / name

    def unsafe(self):
        """Where the body of each `unsafe` block and function begins and ends, and what it says."""
        for found in UNSAFE.finditer(self.bare):
            start, end = self.place(found.end()), self.place(end_of(self.bare, found.end() - 1) - 1)
            if start[0] not in self.test_lines:
                yield start, end, f"unsafe fn {found[1]}" if found[1] else self.source.splitlines()[start[0] - 1].strip()


def files():
    """Those that are not for tests alone."""
    all_of_them = [File(path) for folder in SOURCES for path in sorted(folder.rglob("*.rs"))]
    left_out = [path for file in all_of_them for path in file.test_modules]
    return [
        file
        for file in all_of_them
        if not any(file.path == out.with_suffix(".rs") or out in file.path.parents for out in left_out)
    ]


class Counts:
    """How often each place of a file was run."""

    def __init__(self, segments):
        # Of each: line, column, count, whether it has a count, whether a region begins, whether that is a gap. It goes
        # on to the next.
        self.segments = segments
        self.starts = [(line, column) for line, column, *_ in segments]

    def between(self, start, end):
        """The highest count, `None` where nothing was compiled. Between the parts of an expression nothing is counted."""
        first, last = max(bisect_right(self.starts, start) - 1, 0), bisect_left(self.starts, end)
        return max((count for _, _, count, counted, *_ in self.segments[first:last] if counted), default=None)

    def lines(self):
        """The highest count of what lies in each line, as llvm-cov counts lines."""
        found, wrapped = {}, None
        by_line = {line: list(group) for line, group in groupby(self.segments, lambda segment: segment[0])}
        for line in range(1, max(by_line, default=0) + 1):
            here = by_line.get(line, [])
            begin = [count for _, _, count, counted, begins, gap in here if counted and begins and not gap]
            is_skipped = bool(here) and not here[0][3] and here[0][4]
            through = [wrapped[2]] if wrapped and wrapped[3] else []
            if (begin or through) and not is_skipped:
                found[line] = max(begin + through)
            wrapped = here[-1] if here else wrapped
        return found


def read(exported):
    """Counts by path."""
    files = json.loads(exported.read_text())["data"][0]["files"]
    return {Path(file["filename"]).resolve(): Counts(file["segments"]) for file in files}


def main():
    counts = read(Path(sys.argv[1]))
    known = [(file, counts.get(file.path, Counts([]))) for file in files()]
    lines = {file.name: {n: c for n, c in at.lines().items() if n not in file.test_lines} for file, at in known}
    if len(sys.argv) > 2:
        for file, _ in known:
            if file.name.endswith(sys.argv[2]):
                for number in (number for number, count in lines[file.name].items() if count == 0):
                    print(f"{file.name}:{number}: {file.source.splitlines()[number - 1]}")
        return

    total = defaultdict(lambda: [0, 0])
    for name, of_file in lines.items():
        reached = sum(count > 0 for count in of_file.values())
        if of_file:
            print(f"{reached / len(of_file):7.1%} {reached:5} of {len(of_file):5}  {name}")
        for part in (name.split("/")[0], "all"):
            total[part][0] += reached
            total[part][1] += len(of_file)

    found = [
        (file.name, at.between(start, end), start[0], what) for file, at in known for start, end, what in file.unsafe()
    ]
    missed = [place for place in found if not place[1]]
    print("\n`unsafe` that was not reached:")
    for name, count, line, what in missed:
        print(f"{name}:{line}: {what}{'  (not compiled here)' if count is None else ''}")
    print(f"\n{len(found) - len(missed)} of {len(found)} `unsafe` blocks and functions were reached")
    for part, (reached, count) in total.items():
        print(f"{part}: {reached / count:.2%} of {count} lines were reached")


main()
