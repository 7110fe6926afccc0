"""Runs numpy's own tests with numpy's memory from a pool. `test.sh` leaves them out, because they take some ten
minutes.

    python tests/numpy_suite.py [--without] [PART ...]       PART: numpy.linalg, numpy._core.tests.test_multiarray

Arrays of 4 KiB and more come from the pool, so most tests use it. With ``--without`` none do, to find the tests that
fail anyway, such as `test_mem_policy` without meson. Run single parts if time is short.
"""

import argparse
import gc
import sys

import numpy

import hugefork as hf


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["numpy"], metavar="PART")
    parser.add_argument("--without", action="store_true", help="with numpy's own memory")
    options = parser.parse_args()
    if options.without:
        sys.exit(not numpy.test(tests=options.parts, verbose=1))
    pool = hf.Pool("2 GiB", block_size="64 KiB", name="numpy")
    allocator = hf.numpy_allocator(pool, least="4 KiB", keep="256 MiB")
    with allocator:
        passed = numpy.test(tests=options.parts, verbose=1)
    gc.collect()
    print(allocator.stats())
    sys.exit(not passed)


if __name__ == "__main__":
    main()
