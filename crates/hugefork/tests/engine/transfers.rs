//! Reads from descriptors into regions, and writes from regions to descriptors, while other threads take snapshots.

use std::fs::File;
use std::io::{ErrorKind, Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::alone::alone;
use crate::common::signals::handle;
use crate::common::{Over, by_block, pool};
use hugefork::{Backing, BlockSize, Pool, Region, RegionError, TransferError};

const BLOCK: usize = 2 << 20;
const LEN: usize = 4 * BLOCK;
const READS: usize = 500;

/// Bytes that differ between neighbouring places, and between neighbouring blocks.
fn pattern(len: usize) -> Vec<u8> {
    static LONGEST: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..LEN).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect());
    LONGEST[..len].to_vec()
}

/// A file without a name.
fn file_of(bytes: &[u8]) -> File {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn bytes_of(region: &Region, range: Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    region.snapshot().unwrap().read_at(range.start, &mut bytes).unwrap();
    bytes
}

/// A range for each round, the same in each run: at varying places, shorter and longer than a pipe.
fn range(round: usize) -> Range<usize> {
    let start = round * 777_777 % (LEN - 1);
    let len = [1, 4095, 65_536, 300_000][round % 4];
    start..LEN.min(start + len)
}

/// Runs `reads` while another thread takes snapshots all the time, at least as many as there are reads.
fn beside_snapshots(region: &Region, reads: impl FnOnce(&dyn Fn() -> bool)) {
    let (taken, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(region.snapshot().unwrap());
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&is_over);
        reads(&|| taken.load(Ordering::Relaxed) >= READS);
    });
}

fn pools() -> impl Iterator<Item = Pool> {
    [BlockSize::KIB_4, BlockSize::MIB_2].into_iter().map(|size| pool(Backing::Auto, 8 * LEN, size).unwrap())
}

#[test]
fn reads_of_a_file_beside_snapshots_are_never_short() {
    alone(|| {
        let expected = pattern(LEN);
        let file = file_of(&expected);
        for pool in pools() {
            let region = pool.region(LEN).unwrap();
            beside_snapshots(&region, |enough_snapshots| {
                for round in (0..).take_while(|&round| round < READS || !enough_snapshots()) {
                    let (to, from) = (range(round), range(round + 3));
                    let len = to.len().min(from.len());
                    let to = to.start..to.start + len;
                    assert_eq!(region.read_from_at(&file, to.clone(), from.start as u64), Ok(len), "{round}");
                    assert!(bytes_of(&region, to) == expected[from.start..from.start + len], "{round}");
                }
            });
        }
    })
    .well();
}

/// Checks reads from a pipe or socket, while snapshots are taken.
fn lose_nothing(pool: &Pool, reader: impl AsFd, mut writer: impl Write + Send) {
    let region = pool.region(LEN).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The writer repeats the pattern until the reader is gone.
            let bytes = pattern(LEN);
            std::iter::repeat_with(|| writer.write_all(&bytes)).find(Result::is_err);
        });
        let (expected, mut at) = (pattern(LEN), 0);
        beside_snapshots(&region, |enough_snapshots| {
            for round in (0..).take_while(|&round| round < READS || !enough_snapshots()) {
                let to = range(round);
                assert_eq!(region.read_from(&reader, to.clone()), Ok(to.len()), "{round}");
                let read = bytes_of(&region, to);
                let (now, after_the_end) = read.split_at(read.len().min(LEN - at));
                assert!(now == &expected[at..at + now.len()], "{round}");
                assert!(after_the_end == &expected[..after_the_end.len()], "{round}");
                at = (at + read.len()) % LEN;
            }
        });
        drop(reader);
    });
}

#[test]
fn reads_of_a_pipe_beside_snapshots_are_never_short_and_lose_nothing() {
    alone(|| {
        for pool in pools() {
            let (reader, writer) = pipe().unwrap();
            lose_nothing(&pool, reader, writer);
        }
    })
    .well();
}

#[test]
fn reads_of_stream_sockets_beside_snapshots_are_never_short_and_lose_nothing() {
    alone(|| {
        let (reader, writer) = UnixStream::pair().unwrap();
        lose_nothing(&pools().next().unwrap(), reader, writer);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        lose_nothing(&pools().last().unwrap(), listener.accept().unwrap().0, writer);
    })
    .well();
}

/// The kernel drops a message that it cannot copy, so the memory must be writable at every moment. Each message fits
/// into the bytes that one call reads.
#[test]
fn reads_of_messages_beside_snapshots_lose_none() {
    alone(|| {
        const CALL: usize = 64 << 10;
        for pool in pools() {
            let region = pool.region(LEN).unwrap();
            let (reader, writer) = UnixDatagram::pair().unwrap();
            let message = |round: usize| {
                let start = range(round).start / CALL * CALL;
                start..start + range(round).len().min(CALL)
            };
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let bytes = pattern(LEN);
                    (0..).map(|round| writer.send(&bytes[message(round)])).find(Result::is_err);
                });
                let expected = pattern(LEN);
                beside_snapshots(&region, |enough_snapshots| {
                    for round in (0..).take_while(|&round| round < READS || !enough_snapshots()) {
                        let to = message(round);
                        assert_eq!(region.read_from(&reader, to.clone()), Ok(to.len()), "{round}");
                        assert!(bytes_of(&region, to.clone()) == expected[to], "{round}");
                    }
                });
                drop(reader);
            });
        }
    })
    .well();
}

/// A file that bypasses the page cache, if the file system can do that.
fn direct_file_of(name: &str, bytes: &[u8]) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(path).unwrap();
    file.inspect_err(|error| println!("skipped: no O_DIRECT here: {error}")).ok()
}

#[test]
fn a_device_that_writes_to_memory_by_itself_changes_no_snapshot_and_is_read_in_full() {
    alone(|| {
        let Some(ones) = direct_file_of("ones", &[1; LEN]) else { return };
        let Some(twos) = direct_file_of("twos", &[2; LEN]) else { return };
        let pool = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap();
        let region = pool.region(LEN).unwrap();
        let (is_over, round) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let over = Over(&is_over);
            let checking = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let snapshot = region.snapshot().unwrap();
                    let at_once = snapshot.to_vec();
                    let now = round.load(Ordering::Acquire);
                    while round.load(Ordering::Acquire) == now && !is_over.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    assert!(snapshot[..] == at_once[..], "a snapshot changed");
                }
            });
            for _ in 0..100 {
                let now = round.fetch_add(1, Ordering::Release);
                let (file, value) = if now.is_multiple_of(2) { (&ones, 1) } else { (&twos, 2) };
                assert_eq!(region.read_from_at(file, 0..LEN, 0), Ok(LEN), "{now}");
                assert!(region.snapshot().unwrap()[..] == vec![value; LEN][..], "{now}: what was read is not there");
            }
            drop(over);
            checking.join().unwrap();
        });
        region.write_to_at(&ones, 0..LEN, 0).unwrap();
        let copied = pool.region(LEN).unwrap();
        assert_eq!(copied.read_from_at(&ones, 0..LEN, 0), Ok(LEN));
        assert!(copied.snapshot().unwrap()[..] == vec![2; LEN][..]);
    })
    .well();
}

#[test]
fn a_file_that_ends_early_says_how_much_there_was_and_takes_memory_for_that() {
    let region = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap().region(LEN).unwrap();
    let expected = pattern(BLOCK + 17);
    let mut file = file_of(&expected);
    assert_eq!(region.read_from(&file, 5..LEN), Ok(BLOCK + 17));
    assert!(bytes_of(&region, 5..5 + BLOCK + 17) == expected);
    assert!(bytes_of(&region, 5 + BLOCK + 17..LEN).iter().all(|&byte| byte == 0));
    assert_eq!(region.read_from(&file, 0..LEN), Ok(0), "it was read to its end");
    assert_eq!(region.stats().blocks_present, 2);
    assert_eq!(region.read_from_at(&file, 0..LEN, BLOCK as u64), Ok(17));
    assert_eq!(region.read_from_at(&file, 0..0, 0), Ok(0));
    assert_eq!(file.read(&mut [0]).unwrap(), 0, "its position is where it was");
}

#[test]
fn what_is_written_is_what_the_region_holds() {
    let pool = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap();
    let mut region = pool.region(LEN).unwrap();
    region.as_mut_slice()[BLOCK..2 * BLOCK].copy_from_slice(&pattern(BLOCK));
    let file = file_of(&[]);
    region.write_to(&file, BLOCK - 3..2 * BLOCK + 4).unwrap();
    region.write_to_at(&file, BLOCK..BLOCK + 9, BLOCK as u64 + 100).unwrap();
    let mut written = vec![9; BLOCK + 109];
    file.read_exact_at(&mut written, 0).unwrap();
    let expected = [&[0; 3][..], &pattern(BLOCK), &[0; 4 + 93], &pattern(9)].concat();
    assert!(written == expected);
    assert_eq!(region.stats().blocks_present, 1, "what was never written needs no memory to be read");
}

/// Checks the kernel's error of a transfer, and the number of bytes transferred before.
#[track_caller]
fn check_refused<T: std::fmt::Debug>(result: Result<T, TransferError>, done: usize, errno: i32, says: &[&str]) {
    let error = result.unwrap_err();
    let found = match &error.reason {
        RegionError::System(refused) => refused.raw_os_error(),
        other => panic!("{other}"),
    };
    assert_eq!((error.done, found), (done, errno), "{error}");
    says.iter().for_each(|part| assert!(error.to_string().contains(part), "`{part}` in {error}"));
}

#[test]
fn errors_say_what_is_wrong_and_how_far_it_came() {
    let pool = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap();
    let region = pool.region(LEN).unwrap();
    let (reader, mut writer) = pipe().unwrap();

    let outside = region.read_from(&reader, LEN - 1..LEN + 1).unwrap_err();
    assert!(matches!(outside.reason, RegionError::OutOfRange { len: LEN, .. }), "{outside}");
    assert_eq!(std::io::Error::from(outside).kind(), ErrorKind::InvalidInput);
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = region.write_to(&writer, 2..1).unwrap_err();
    assert!(matches!(reversed.reason, RegionError::OutOfRange { .. }), "{reversed}");

    check_refused(
        region.read_from(&writer, 0..9),
        0,
        libc::EBADF,
        &["read failed: bad file descriptor (EBADF)", "open for this"],
    );
    check_refused(region.write_to(&reader, 0..9), 0, libc::EBADF, &["write failed", "after 0 bytes"]);
    check_refused(region.read_from_at(&reader, 0..9, 0), 0, libc::ESPIPE, &["pread failed", "without `_at`"]);
    check_refused(region.read_from_at(file_of(&[1]), 0..9, u64::MAX), 0, libc::EINVAL, &["pread failed"]);
    // SAFETY: no descriptor has this number, so nothing is read.
    let closed = unsafe { BorrowedFd::borrow_raw(1_000_000) };
    check_refused(region.read_from(closed, 0..9), 0, libc::EBADF, &["give a descriptor that is open"]);
    assert_eq!(region.stats().faults.failed, 0);

    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    writer.write_all(&pattern(1000)).unwrap();
    let short = region.read_from(&reader, 0..LEN);
    check_refused(short.clone(), 1000, libc::EAGAIN, &["after 1000 bytes"]);
    assert_eq!(std::io::Error::from(short.unwrap_err()).kind(), ErrorKind::WouldBlock);
    assert_eq!(bytes_of(&region, 0..1000), pattern(1000));

    drop(reader);
    check_refused(
        region.write_to(&writer, 0..9),
        0,
        libc::EPIPE,
        &["write failed: nobody reads the other end (EPIPE)"],
    );
}

#[test]
fn a_read_that_fails_whatever_is_done_about_the_memory_ends_with_an_error() {
    let region = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap().region(LEN).unwrap();
    region.prepare_write(0..LEN).unwrap();
    // The engine does not notice this change, and takes the block for writable.
    // SAFETY: it is inside the region, to which nobody has a reference.
    let protected = unsafe { libc::mprotect(region.as_mut_ptr().add(BLOCK).cast(), BLOCK, libc::PROT_READ) };
    assert_eq!(protected, 0);
    let file = file_of(&pattern(2 * BLOCK));
    check_refused(region.read_from(&file, 0..LEN), BLOCK, libc::EFAULT, &["read failed: bad address (EFAULT)"]);
}

#[test]
fn a_part_that_was_taken_away_is_an_error_and_not_a_short_file() {
    let pool = pool(Backing::Auto, 4 * BLOCK, BlockSize::MIB_2).unwrap();
    let mut region = pool.region_with(2 * BLOCK, by_block()).unwrap();
    region.as_mut_slice().fill(1);
    let fork = region.fork().unwrap();
    let rest = pool.region(2 * BLOCK).unwrap();
    rest.populate().unwrap();
    region.as_mut_slice()[BLOCK] = 2;
    assert!(fork.is_revoked());
    let file = file_of(&[]);
    let error = fork.write_to(&file, 0..2 * BLOCK).unwrap_err();
    assert_eq!((error.done, error.reason), (BLOCK, RegionError::Revoked));
    assert_eq!(fork.write_to(&file, 0..BLOCK), Ok(()));
    assert_eq!(fork.read_from_at(&file, BLOCK..BLOCK + 1, 0).unwrap_err().reason, RegionError::Revoked);
}

static INTERRUPTED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_interruption(_: i32) {
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
}

/// Waits until the thread sleeps in its next call, here `read(2)` of an empty pipe.
fn wait_until_asleep(thread: u32) {
    let sleeps = || {
        let state = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        state.rsplit_once(") ").unwrap().1.starts_with('S')
    };
    while !sleeps() {
        std::thread::yield_now();
    }
}

#[test]
fn interrupted_reads_go_on() {
    alone(|| {
        handle(libc::SIGUSR1, count_interruption as *const () as usize, 0, &[]);
        let region = pool(Backing::Auto, 8 * LEN, BlockSize::MIB_2).unwrap().region(LEN).unwrap();
        region.prepare_write(0..100).unwrap();
        let (reader, mut writer) = pipe().unwrap();
        let thread = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                // SAFETY: no arguments.
                thread.store(unsafe { libc::syscall(libc::SYS_gettid) } as u32, Ordering::Release);
                region.read_from(reader.as_fd(), 0..100)
            });
            let thread = loop {
                match thread.load(Ordering::Acquire) {
                    0 => std::thread::yield_now(),
                    thread => break thread,
                }
            };
            for round in 0..10 {
                wait_until_asleep(thread);
                // SAFETY: sends a signal to a thread of this process, which lives until the pipe is full.
                assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) }, 0);
                while INTERRUPTED.load(Ordering::Relaxed) <= round {
                    std::thread::yield_now();
                }
                wait_until_asleep(thread);
                writer.write_all(&pattern(100)[round as usize * 10..][..10]).unwrap();
            }
            assert_eq!(reading.join().unwrap(), Ok(100));
        });
        assert_eq!(bytes_of(&region, 0..100), pattern(100));
    })
    .well();
}

/// Each write to such a pipe is one message: a reader gets all of it, or loses the rest.
#[test]
fn messages_of_a_pipe_are_read_whole() {
    let Some(pool) = pool(Backing::ShmemBase, 4 * BLOCK, BlockSize::MIB_2) else { return };
    let region = pool.region(BLOCK).unwrap();
    let (reader, mut writer) = pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::DIRECT).unwrap();
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::DIRECT).unwrap();
    let bytes = pattern(8192);
    bytes.chunks(4096).for_each(|message| assert_eq!(writer.write(message).unwrap(), 4096));
    drop(writer);
    assert_eq!(region.read_from(&reader, 65_535..BLOCK), Ok(8192));
    assert_eq!(bytes_of(&region, 65_535..65_535 + 8192), bytes);
}

/// A file system with one file, to which writes go past the page cache. Its server, a thread, reads a write when it is
/// allowed to.
struct Fuse {
    at: std::ffi::CString,
    /// The bytes of each write.
    written: Receiver<Vec<u8>>,
}

impl Fuse {
    /// The server sends on `is_there` when a write has arrived, and waits for `may_read` before it reads it.
    fn start(is_there: Sender<()>, may_read: Receiver<()>) -> std::io::Result<Fuse> {
        let server = File::options().read(true).write(true).open("/dev/fuse")?;
        let file = std::env::temp_dir().join(format!("hugefork-fuse-{}", std::process::id()));
        File::create(&file)?;
        let at = std::ffi::CString::new(file.into_os_string().into_encoded_bytes())?;
        let options = format!("fd={},rootmode=100666,user_id=0,group_id=0\0", server.as_fd().as_raw_fd());
        // SAFETY: strings that end with a zero byte.
        let mounted =
            unsafe { libc::mount(c"fuse".as_ptr(), at.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast()) };
        let (result, error) = (mounted, std::io::Error::last_os_error());
        let (to, written) = channel();
        let fuse = Fuse { at, written };
        if result != 0 {
            return Err(error);
        }
        std::thread::spawn(move || serve(&server, &to, &is_there, &may_read));
        Ok(fuse)
    }

    fn open(&self) -> File {
        File::options().write(true).open(self.at.to_str().unwrap()).unwrap()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // SAFETY: a string that ends with a zero byte.
        unsafe { libc::umount2(self.at.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_file(self.at.to_str().unwrap());
    }
}

/// Answers requests as in fuse(4) and `linux/fuse.h`, until the file system is gone.
fn serve(server: &File, written: &Sender<Vec<u8>>, is_there: &Sender<()>, may_read: &Receiver<()>) {
    const OPEN: u32 = 14;
    let (mut request, mut is_open) = (vec![0; 2 << 20], false);
    loop {
        let mut wait = [rustix::event::PollFd::new(server, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut wait, None).unwrap();
        if is_open {
            // The next request is the write.
            let _ = is_there.send(());
            let _ = may_read.recv();
        }
        let Ok(len) = (&mut &*server).read(&mut request) else { return };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (code, unique) = (word(4), &request[8..16]);
        is_open = code == OPEN;
        let answer = match code {
            // GETATTR: a file of a GiB that anybody may write to.
            3 => {
                let mut attributes = [0; 104];
                attributes[16..24].copy_from_slice(&1_u64.to_ne_bytes());
                attributes[24..32].copy_from_slice(&(1_u64 << 30).to_ne_bytes());
                attributes[76..80].copy_from_slice(&0o100_666_u32.to_ne_bytes());
                attributes[80..84].copy_from_slice(&1_u32.to_ne_bytes());
                attributes.to_vec()
            }
            // With direct I/O.
            OPEN => [[0, 0].as_slice(), &[1, 0]].concat().into_iter().flat_map(u32::to_ne_bytes).collect(),
            // WRITE
            16 => {
                written.send(request[80..len].to_vec()).unwrap();
                [word(56), 0].into_iter().flat_map(u32::to_ne_bytes).collect()
            }
            // INIT: version 7.31, writes of 1 MiB, of 256 pages each.
            26 => {
                let flags: u32 = 1 << 5 | 1 << 22;
                let mut words = [7, 31, 1 << 20, flags, 10 << 16 | 12, 1 << 20, 1, 256].to_vec();
                words.resize(16, 0);
                words.into_iter().flat_map(u32::to_ne_bytes).collect()
            }
            // FORGET has no answer.
            2 | 42 => continue,
            // FLUSH, RELEASE
            18 | 25 => vec![],
            // ENOSYS
            _ => {
                let error = [16_u32.to_ne_bytes(), (-38_i32).to_ne_bytes()].concat();
                (&mut &*server).write_all(&[&error, unique].concat()).unwrap();
                continue;
            }
        };
        let head = [(16 + answer.len() as u32).to_ne_bytes(), [0; 4]].concat();
        (&mut &*server).write_all(&[&head, unique, &answer].concat()).unwrap();
    }
}

/// Between the call and the moment that the server reads, another region gets the block.
#[test]
fn a_server_that_reads_late_gets_what_the_region_has() {
    alone(|| {
        let Some(pool) = pool(Backing::ShmemBase, 4 * BLOCK, BlockSize::MIB_2) else { return };
        let ((is_there, there), (may, may_read)) = (channel(), channel());
        let fuse = match Fuse::start(is_there, may_read) {
            Ok(fuse) => fuse,
            Err(error) => return println!("skipped: no file system of FUSE: {error}"),
        };
        let file = fuse.open();
        let region = pool.region_with(BLOCK, by_block()).unwrap();
        // SAFETY: no other thread uses the region yet.
        unsafe { region.as_mut_ptr().write_bytes(b'a', BLOCK) };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| region.write_to(&file, 0..65_536));
            there.recv().unwrap();
            let snapshot = region.snapshot().unwrap();
            // SAFETY: nobody else is there.
            unsafe { region.as_mut_ptr().add(BLOCK - 1).write_volatile(b'x') };
            drop(snapshot);
            let mut others = pool.region(3 * BLOCK).unwrap();
            others.as_mut_slice().fill(b's');
            may.send(()).unwrap();
            let written = fuse.written.recv().unwrap();
            drop(may);
            writer.join().unwrap().unwrap();
            assert!(written.len() == 65_536 && written.iter().all(|&byte| byte == b'a'), "{:?}", written.first());
        });
    })
    .well();
}
