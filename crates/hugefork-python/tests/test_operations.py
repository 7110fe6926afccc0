"""Operations: a snapshot contains all writes of an operation or none."""

import math
import threading

import pytest

import hugefork as hf


def transfers(balances, operations, is_over, begun):
    """Moves one unit back and forth, so that the sum is 0 between two transfers."""
    while not is_over.is_set():
        if operations is None:
            balances[0] -= 1
            begun.set()
            balances[-1] += 1
        else:
            with operations, operations:
                balances[0] -= 1
                begun.set()
                balances[-1] += 1


@pytest.fixture
def beside():
    """Runs a body while a thread makes transfers."""

    def run(balances, operations, body):
        is_over, begun = threading.Event(), threading.Event()
        thread = threading.Thread(target=transfers, args=(balances, operations, is_over, begun))
        thread.start()
        try:
            begun.wait()
            body()
        finally:
            is_over.set()
            thread.join()

    return run


def sum_of_cut(balances):
    with hf.snapshot(balances) as s:
        return int(s[balances].sum())


def test_no_operation_is_cut_in_half(pool, beside):
    operations = hf.Operations(patience=math.inf)
    balances = pool.zeros(1000, "int64", operations=operations)

    def cuts():
        for _ in range(200):
            assert sum_of_cut(balances) == 0
            fork = hf.fork(balances)
            assert fork.sum() == 0

    beside(balances, operations, cuts)


def test_without_operations_some_cuts_are_torn(pool, beside):
    balances = pool.zeros(1000, "int64")

    def cuts():
        while sum_of_cut(balances) == 0:
            pass

    beside(balances, None, cuts)


def test_a_cut_inside_is_an_error(pool):
    operations = hf.Operations()
    a, b = pool.zeros(3, operations=operations), pool.array([1, 2], operations=operations)
    before = hf.snapshot(a, b)
    with operations:
        for cut in (
            lambda: hf.snapshot(a, b),
            lambda: hf.fork(b),
            lambda: hf.reset(a, b, before),
            lambda: hf.prepare_snapshot(a),
        ):
            with pytest.raises(hf.InsideOperationError, match="leave it first") as error:
                cut()
            assert error.value.code == "inside_operation"
    hf.snapshot(a, b).close()
    with pytest.raises(RuntimeError, match="inside of no such operation"):
        operations.__exit__(None, None, None)
    before.close()


def test_a_cut_times_out_and_an_exception_leaves_the_operation(pool):
    operations = hf.Operations(patience=0.001)
    a = pool.zeros(3, operations=operations)
    inside, over = threading.Event(), threading.Event()

    def blocks():
        try:
            with operations:
                inside.set()
                over.wait()
                raise KeyError
        except KeyError:
            pass

    thread = threading.Thread(target=blocks)
    thread.start()
    inside.wait()
    with pytest.raises(hf.OperationGoesOnError, match="thread [0-9]+ has been inside"):
        hf.snapshot(a)
    with operations:  # no thread has to wait
        pass
    over.set()
    thread.join()
    hf.snapshot(a).close()


def test_a_region_has_one_operations_object(pool):
    a, b = pool.zeros(3, operations=hf.Operations()), pool.zeros(3, operations=hf.Operations())
    with pytest.raises(hf.AnotherOperationsError):
        hf.snapshot(a, b)
    with pytest.raises(hf.AnotherOperationsError):
        hf.region_of(a).set_operations(hf.Operations())
    for patience in (-1, math.nan):
        with pytest.raises(ValueError, match="give seconds"):
            hf.Operations(patience=patience)
