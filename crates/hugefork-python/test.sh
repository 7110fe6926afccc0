#!/usr/bin/env bash
# Builds the package, installs it into a virtual environment below target/, and runs its tests there. The last
# line is like cargo's, "test result: ok. 90 passed; 0 failed; …". Exits with 77 if the tests cannot run here.
#
#   ./test.sh [OPTIONS OF PYTEST]       PYTHON=python3.12 ./test.sh
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
target=${CARGO_TARGET_DIR:-../../target}
environment=$target/python-environment-$(basename "$python")

cannot() { echo "skipped: the tests in Python: $1" >&2; exit 77; }
command -v "$python" >/dev/null || cannot "there is no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || cannot "$python is older than 3.11"
[ -x "$environment/bin/pip" ] || "$python" -m venv "$environment" >&2 || cannot "$python makes no environments (python3-venv)"
missing() { ! "$environment/bin/python" -c "$1" 2>/dev/null; }
if missing "import numpy, pytest, hypothesis, mypy, maturin"; then
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
        'maturin>=1.16,<2' 'numpy>=1.26' 'pytest>=8' 'hypothesis>=6' 'mypy>=1.10' || cannot "pip cannot install what they take"
fi
# The tests with ranks of MPI are left out without it, and say so. torch is too large (5 GB) to be installed for its tests.
if command -v mpirun >/dev/null && missing "import mpi4py"; then
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 mpi4py >&2 || true
fi
# From a wheel, as users have it: the sources are not on the path of the tests.
rm -rf "$target/wheels-for-tests"
PATH=$environment/bin:$PATH "$environment/bin/maturin" build --quiet --profile dev --interpreter "$environment/bin/python" --out "$target/wheels-for-tests"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
    "$target"/wheels-for-tests/hugefork-*.whl

report=$target/python-tests.xml
status=0
"$environment/bin/python" -m pytest --quiet --junitxml "$report" "$@" || status=$?
"$environment/bin/python" - "$report" <<'PYTHON'
import sys
from xml.etree import ElementTree

suite = ElementTree.parse(sys.argv[1]).getroot().find("testsuite")
count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
failed = count["failures"] + count["errors"]
passed = count["tests"] - failed - count["skipped"]
word = "FAILED" if failed else "ok"
print(f"\ntest result: {word}. {passed} passed; {failed} failed; {count['skipped']} ignored; 0 measured; 0 filtered out")
PYTHON
exit "$status"
