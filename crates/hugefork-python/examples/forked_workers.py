"""The memory of forked workers that only read data shared with their parent, as in prefork servers.

    python forked_workers.py                           # as it is
    systemd-run -t -p MemoryKSM=yes python $PWD/forked_workers.py   # with equal pages merged (KSM has to run)

CPython counts references, and so writes to objects that it reads: the kernel copies each page for each worker.
Arguments: the number of workers (8), the shared MiB (1024), and the seconds to wait after the workers have read
everything (10). Needs Linux, and only Python.
"""

import gc
import os
import sys
import time

MIB = 1 << 20


def kib(path, *names):
    """The sum of some lines of a file such as /proc/meminfo, in KiB."""
    with open(path) as lines:
        words = [line.split() for line in lines]
    return sum(int(line[1]) for line in words if line[0].rstrip(":") in names)


def machine():
    """MiB of memory of all programs that is not backed by a file on disk. Run nothing else."""
    return kib("/proc/meminfo", "AnonPages", "Shmem") >> 10


def proportional(pids):
    """MiB of some processes, each shared page counted once."""
    return sum(kib(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids) >> 10


def helper_ms(pid):
    """Milliseconds that the other threads of a process have used."""
    used = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        if task != str(pid):
            with open(f"/proc/{pid}/task/{task}/stat") as stat:
                user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
            used += (int(user) + int(system)) * 1000 // os.sysconf("SC_CLK_TCK")
    return used


def read_all(table):
    return sum(len(name) + number + len(texts[0]) for name, number, texts in table)


def main():
    workers, mib, wait = (int(arg) for arg in (sys.argv[1:] + ["8", "1024", "10"][len(sys.argv) - 1 :]))
    # Each row takes about 320 bytes.
    table = [(f"name {row}", row + 1000, [f"value {row}"]) for row in range(mib * MIB // 320)]
    gc.collect()
    gc.freeze()
    expected = read_all(table)
    before, own = machine(), kib("/proc/self/status", "VmRSS") >> 10
    has_read, says_so = os.pipe()
    goes_on, lets_go = os.pipe()
    pids, began = [], time.monotonic()
    for _ in range(workers):
        pid = os.fork()
        if pid == 0:
            is_right = read_all(table) == expected
            os.write(says_so, b".")
            os.read(goes_on, 1)
            os._exit(0 if is_right and read_all(table) == expected else 1)
        pids.append(pid)
    for _ in pids:
        os.read(has_read, 1)
    took = time.monotonic() - began
    for seconds in (0, wait):
        time.sleep(seconds)
        pss, now = proportional([os.getpid(), *pids]), machine()
        print(
            f"{seconds:3} s after {workers} workers have read all in {took:.1f} s: they take {now - before} MiB "
            f"beside the {own} MiB that they share; PSS of all {pss} MiB"
        )
    used = [helper_ms(pid) for pid in pids]
    if any(used):
        lived = time.monotonic() - began
        print(f"hugefork's thread of a worker: {max(used)} ms at most, {max(used) / 10 / lived:.1f} % of a processor")
    os.write(lets_go, b"." * workers)
    bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    print(f"{bad} workers read something else than before")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
