//! The physical memory of a pool, seen past the page tables of its regions.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// The memory of the only pool of this process. The pool exports, so there is a descriptor.
fn memfd() -> File {
    let is_pool = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:hugefork"))
    };
    let mut all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).filter(is_pool);
    let path = all.next().expect("a pool is open");
    assert_eq!(all.next(), None, "one pool at a time");
    File::options().read(true).write(true).open(path).unwrap()
}

/// Bytes that the kernel has given to the only pool of this process.
pub(crate) fn memory() -> usize {
    memfd().metadata().unwrap().blocks() as usize * 512
}

/// One block of physical memory as a device sees it, past the region's page table.
pub(crate) struct Device(*mut u8, usize);

impl Device {
    /// The memory that is behind `address` at the moment.
    pub(crate) fn at(address: usize, len: usize) -> Device {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let offset = hex(fields.nth(1)?);
            (hex(start)..hex(end)).contains(&address).then(|| offset + address - hex(start))
        });
        let (fd, rights) = (memfd(), libc::PROT_READ | libc::PROT_WRITE);
        let offset = offset.unwrap() as libc::off_t;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd.as_raw_fd(), offset) };
        assert_ne!(at, libc::MAP_FAILED);
        Device(at.cast(), len)
    }

    pub(crate) fn write(&self, at: usize, value: u8) {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).write_volatile(value) };
    }

    pub(crate) fn read(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).read_volatile() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}
