import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A program whose virtual machine handles SIGSEGV itself: for null pointers in compiled code, and to stop its threads.
 * It does so before there is a region, while its threads write to one and snapshots are taken, and afterwards.
 */
public class Hosted {
    static native ByteBuffer open(long len);

    static native long snapshot();

    static native long read(long snapshot, long offset);

    static native void close(long snapshot);

    static native boolean end();

    static final int LEN = 16 << 20;
    static final int PAGE = 4096;
    static final int WRITERS = 2;
    static final int SNAPSHOTS = 20;

    static final class Node {
        long value = 1;
    }

    /** The compiler leaves out the check: a load from page zero ends in the virtual machine's handler. */
    static long valueOf(Node node) {
        return node.value;
    }

    static void checkNulls(int rounds) {
        Node node = new Node();
        long sum = 0, caught = 0;
        for (int round = 0; round < rounds; round++) {
            try {
                sum += valueOf(round % 1000 == 999 ? null : node);
            } catch (NullPointerException expected) {
                caught++;
            }
        }
        check(caught == rounds / 1000 && sum == rounds - caught, "of " + rounds + ", " + caught + " were caught");
    }

    static void check(boolean isSo, String what) {
        if (!isSo) {
            System.err.println(what);
            System.exit(1);
        }
    }

    static volatile boolean over;

    /** Counts in places of its own, one after the other: an earlier one is never behind. */
    static void write(ByteBuffer region, int writer) {
        for (long count = 1; !over; count++) {
            for (int at = writer * 8; at < LEN; at += PAGE) {
                check(region.getLong(at) == count - 1, "a write was lost");
                region.putLong(at, count);
            }
        }
    }

    static void checkCut(long snapshot) {
        for (int writer = 0; writer < WRITERS; writer++) {
            long first = read(snapshot, writer * 8), last = first;
            for (int at = writer * 8; at < LEN; at += PAGE) {
                long here = read(snapshot, at);
                check(here <= last && here >= 0 && here + 1 >= first, "a cut has " + here + " after " + last);
                last = here;
            }
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        checkNulls(300_000);
        System.load(arguments[0]);
        ByteBuffer region = open(LEN);
        check(region != null, "there is no region");
        region.order(ByteOrder.nativeOrder());
        checkNulls(300_000);
        Thread[] threads = new Thread[WRITERS + 2];
        for (int writer = 0; writer < WRITERS; writer++) {
            int who = writer;
            threads[writer] = new Thread(() -> write(region, who));
        }
        threads[WRITERS] = new Thread(() -> {
            while (!over) {
                checkNulls(20_000);
            }
        });
        // The collector stops all others.
        threads[WRITERS + 1] = new Thread(() -> {
            while (!over) {
                byte[][] garbage = new byte[100][];
                for (int at = 0; at < garbage.length; at++) {
                    garbage[at] = new byte[10_000];
                }
                System.gc();
            }
        });
        for (Thread thread : threads) {
            thread.start();
        }
        for (int round = 0; round < SNAPSHOTS; round++) {
            long snapshot = snapshot();
            check(snapshot != 0, "there is no snapshot");
            checkCut(snapshot);
            close(snapshot);
        }
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        checkNulls(300_000);
        check(end(), "blocks are missing");
        checkNulls(300_000);
        System.out.println("all is well");
    }
}
