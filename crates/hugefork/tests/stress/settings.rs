//! Changes settings of the machine for a while. They are restored however the process ends, even by Ctrl-C or
//! `SIGKILL`: another process, in a group of its own, waits until its standard input ends and then restores them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const GIGANTIC: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB";
const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const MOST_MAPPINGS: &str = "/proc/sys/vm/max_map_count";
const PAGE: usize = 4096;

/// A setting that is restored when this is dropped, or when the process is gone.
pub(crate) struct Lent(Child);

impl Lent {
    /// `back` is a shell command that restores the setting.
    fn until_gone(back: &str) -> io::Result<Lent> {
        let script = format!("cat >/dev/null; {back}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdin(Stdio::piped()).process_group(0).current_dir("/").spawn().map(Lent)
    }

    /// Writes another value to a file of the kernel's.
    fn set(path: &Path, before: &str, value: &str) -> io::Result<Lent> {
        let lent = Lent::until_gone(&format!("echo {before} > {}", path.display()))?;
        fs::write(path, value)?;
        Ok(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.stdin.take();
        let _ = self.0.wait();
    }
}

fn number(path: &Path) -> io::Result<usize> {
    fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

/// Whether `count` hugetlb pages of 1 GiB are free.
pub(crate) fn has_gigantic_pages(count: usize) -> bool {
    number(&Path::new(GIGANTIC).join("free_hugepages")).is_ok_and(|free| free >= count)
}

/// Adds `count` hugetlb pages of 2 MiB or of 1 GiB.
pub(crate) fn huge_pages(is_gigantic: bool, count: usize) -> io::Result<Lent> {
    let path = Path::new(if is_gigantic { GIGANTIC } else { HUGE }).join("nr_hugepages");
    let before = number(&path)?;
    Lent::set(&path, &before.to_string(), &(before + count).to_string())
}

pub(crate) fn shmem(value: &str) -> io::Result<Lent> {
    let text = fs::read_to_string(SHMEM)?;
    let before = text.split(['[', ']']).nth(1).ok_or_else(|| io::Error::other(text.clone()))?.to_owned();
    Lent::set(Path::new(SHMEM), &before, value)
}

pub(crate) fn most_mappings(most: usize) -> io::Result<Lent> {
    let before = number(Path::new(MOST_MAPPINGS))?;
    Lent::set(Path::new(MOST_MAPPINGS), &before.to_string(), &most.to_string())
}

/// Adds a swap file of `len` bytes.
pub(crate) fn swap(len: usize) -> io::Result<Lent> {
    let path = std::env::temp_dir().join(format!("hugefork-stress-swap-{}", id()));
    let lent = Lent::until_gone(&format!("swapoff {path}; rm -f {path}", path = path.display()))?;
    fs::write(&path, vec![0; len])?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    // The header as mkswap(8) writes it: version 1, the last page, no bad pages, and the magic at the end of the first
    // page.
    let file = File::options().write(true).open(&path)?;
    let header = [1, (len / PAGE - 1) as u32, 0].map(u32::to_ne_bytes).concat();
    file.write_all_at(&header, 1024)?;
    file.write_all_at(b"SWAPSPACE2", PAGE as u64 - 10)?;
    file.sync_all()?;
    let name = std::ffi::CString::new(path.into_os_string().into_string().expect("a path that is text"))?;
    // SAFETY: reads the path.
    if unsafe { libc::swapon(name.as_ptr(), 0) } == 0 { Ok(lent) } else { Err(io::Error::last_os_error()) }
}

/// A control group with little memory for this process and its children. A thread asks the kernel again and again to
/// reclaim all that it can: once a limit is reached, the kernel would rather kill a process that uses all of its pages
/// than swap them out.
pub(crate) struct Short {
    over: Arc<AtomicBool>,
    squeezer: Option<JoinHandle<()>>,
    _group: Lent,
}

impl Short {
    pub(crate) fn enter(most: usize) -> io::Result<Short> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let of = |controller: &str, root: &str| -> Option<PathBuf> {
            let lines = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            let group = lines.filter(|line| line.0 == controller).map(|line| line.1).next()?;
            Some(Path::new(root).join(group.trim_start_matches('/')))
        };
        let [limit, reclaim] = ["memory.limit_in_bytes", "memory.force_empty"];
        let first = of("memory", "/sys/fs/cgroup/memory").filter(|path| path.join(reclaim).exists());
        let (parent, limit, reclaim) = match first {
            Some(parent) => (parent, limit, reclaim),
            None => {
                let parent = of("", "/sys/fs/cgroup").ok_or_else(|| io::Error::other("no control groups"))?;
                (parent, "memory.max", "memory.reclaim")
            }
        };
        let own = parent.join(format!("hugefork-stress-{}", id()));
        let back = format!(
            "for p in $(cat {own}/cgroup.procs); do echo $p > {parent}/cgroup.procs; done; \
             for i in $(seq 100); do rmdir {own} 2>/dev/null && break; sleep 0.1; done",
            own = own.display(),
            parent = parent.display(),
        );
        fs::create_dir(&own)?;
        let group = Lent::until_gone(&back)?;
        fs::write(own.join(limit), most.to_string())?;
        let file = File::options().write(true).open(own.join(reclaim))?;
        fs::write(own.join("cgroup.procs"), id().to_string())?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let squeezer = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                // The kernel may reclaim less than was asked for, which is an error.
                let _ = file.write_at(most.to_string().as_bytes(), 0);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Ok(Short { over, squeezer: Some(squeezer), _group: group })
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.squeezer.take().map(JoinHandle::join);
    }
}
