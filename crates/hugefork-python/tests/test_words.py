"""Messages for Python contain only names that exist in Python."""

import builtins
import re
from pathlib import Path

import hugefork as hf
import pytest
from hugefork._errors import in_words_of_python

CRATES = Path(__file__).parents[2]
PACKAGE = CRATES / "hugefork-python/python/hugefork"
OF_VIEWS = "Region::writers_of"
"""Errors that no function of Python can raise."""

ALL_OF = ("types/error.rs", "types/extents.rs", "fault/report.rs")
"""Files of the engine that contain only texts of messages."""


def texts_of_engine():
    """The texts of all errors of the engine, and of its fault handler's lines."""
    for path in sorted((CRATES / "hugefork/src").rglob("*.rs")):
        code = re.sub(r"(?m)^\s*//.*$", "", path.read_text().split("#[cfg(test)]")[0])
        parts = [code] if str(path).endswith(ALL_OF) else re.findall(r"#\[error\((.*?)\)\]", code, re.DOTALL)
        for part in parts:
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', part, re.DOTALL):
                yield re.sub(r"\\\n\s*", "", text)


def names(text):
    """Names that have a meaning only in Rust; names in capitals are the kernel's."""
    for word in re.findall(r"[\w:./]+", re.sub(r"\{[^}]*\}", "", text)):
        word = word.strip(":.")
        is_type = word[:1].isupper() and word.upper() != word
        is_of_kernel = word.startswith(("vm.", "/")) or word in ("Linux", "KiB", "GiB", "shmem_enabled") or word.upper() == word
        if (is_type or "::" in word or "_" in word or word.startswith("hugefork.")) and not is_of_kernel:
            yield word


def test_every_message_of_the_engine_names_python_items():
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    found = [text for text in texts_of_engine() if OF_VIEWS not in text]
    assert len(found) > 60, "they are looked for where they were"
    for text in map(in_words_of_python, found):
        for name in names(text):
            last = name.removeprefix("hugefork.")
            assert hasattr(hf, last) or hasattr(builtins, name) or f"{name}:" in sources, f"{name!r} is nothing in Python: {text}"


def test_messages_of_the_package_name_nothing_of_rust_and_c():
    raised = [*PACKAGE.rglob("*.py"), *(CRATES / "hugefork-python/src").glob("*.rs")]
    for path in raised:
        for text in re.findall(r'(?:raise \w+|new_err|format!)\(\s*f?"((?:[^"\\]|\\.)*)"', path.read_text()):
            assert not re.search(r"::|\bhf_|\bHF_", text), f"{path.name}: {text}"


def test_the_revocation_message_names_reason_and_remedy():
    a = hf.Pool("8 MiB").empty(4 << 20, "uint8", max_cow_bytes="2 MiB", copy_grain="block")
    a[:] = 1
    snapshot = hf.snapshot(a)
    a[:] = 2
    with pytest.raises(hf.RevokedError, match="max_cow_bytes were used up: make it with reserve=True"):
        snapshot.copy(a)
    with pytest.raises(hf.NotReservableError, match="take reserve=False"):
        hf.fork(a, reserve=True)
