//! The reasons why the library cannot be loaded into a program: one sentence each, with a remedy if
//! there is one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hugefork_program::ProgramMemory;
use object::elf::ProgramHeader64;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Architecture, Endianness, FileKind, Object, ObjectSection, ReadCache};
use rustix::process::{getgid, getuid};

/// Sanitizers: a function that only this sanitizer has.
const SANITIZERS: [(&[u8], &str); 5] = [
    (b"__asan_init", "AddressSanitizer"),
    (b"__tsan_init", "ThreadSanitizer"),
    (b"__msan_init", "MemorySanitizer"),
    (b"__hwasan_init", "HWAddressSanitizer"),
    (b"__lsan_init", "LeakSanitizer"),
];

/// The first reason that applies to the image of a program and the library's bytes, if any.
pub(super) fn of(image: &Path, library: &[u8]) -> Option<String> {
    not_loadable(image, library).or_else(|| secure(image)).or_else(of_the_machine)
}

/// The reason why no program can have a pool on this machine or under this process's limits.
fn of_the_machine() -> Option<String> {
    let unfit = hugefork_preload::fit::why_no_pool().map(str::to_owned);
    unfit.or_else(|| ProgramMemory::new(2 << 20).err().map(|why| format!("there is no pool here: {why}")))
}

/// A file that cannot be read, or is no valid ELF file, gives no reason.
fn not_loadable(image: &Path, library: &[u8]) -> Option<String> {
    let cache = ReadCache::new(File::open(image).ok()?);
    let other = Some("is built for another architecture, and hugefork's library for this one".to_owned());
    if FileKind::parse(&cache).ok()? == FileKind::Elf32 {
        return other;
    }
    let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let machine = if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
    if file.architecture() != machine {
        return other;
    }
    let path = |part: &ProgramHeader64<_>| part.interpreter(file.endian(), &cache).ok()?;
    let Some(loader) = file.elf_program_headers().iter().find_map(path) else {
        return Some("is linked statically and cannot load a library: link it dynamically (Go: with libc)".to_owned());
    };
    if loader.windows(7).any(|part| part == b"ld-musl") {
        return Some("uses musl, and hugefork's library needs glibc: build it for glibc".to_owned());
    }
    // The loader would end the program. It lies beside its libc; a program whose libc lies elsewhere is not checked.
    let libc = Path::new(OsStr::from_bytes(loader)).canonicalize().map(|loader| loader.with_file_name("libc.so.6"));
    let needed = newest_glibc(library);
    if libc.and_then(fs::read).is_ok_and(|libc| newest_glibc(&libc) < needed) {
        return Some(format!("uses a glibc before 2.{needed}, which hugefork's library needs: build hugefork there"));
    }
    // The names of all symbols; those of a statically linked sanitizer are in the second section only.
    let sections = [".dynstr", ".strtab"].into_iter().filter_map(|name| file.section_by_name(name)?.data().ok());
    let mut names = sections.flat_map(|strings| strings.split(|byte| *byte == 0));
    // Sanitizers lay out all memory themselves, and interpose the same functions.
    let (_, sanitizer) = names.find_map(|name| SANITIZERS.iter().find(|(function, _)| *function == name))?;
    Some(format!("is built with {sanitizer}, which manages memory itself: build it without"))
}

/// The newest symbol version of glibc that a file has or needs: 35 for 2.35, or 0 if there is none.
fn newest_glibc(file: &[u8]) -> u32 {
    let names = file.split(|byte| *byte == 0).filter_map(|name| str::from_utf8(name.strip_prefix(b"GLIBC_2.")?).ok());
    names.filter_map(|version| version.parse().ok()).max().unwrap_or(0)
}

/// Programs with more rights than their caller do not load libraries that the caller names.
fn secure(image: &Path) -> Option<String> {
    // With this setting, a program that this process executes gets no additional rights.
    // SAFETY: the arguments are numbers, so the call accesses no memory.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 {
        return None;
    }
    let there = image.metadata().ok()?;
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let sets = |bits: u32| there.mode() & bits == bits;
    let has_capabilities = || rustix::fs::getxattr(image, "security.capability", &mut [0_u8; 64][..]).is_ok();
    let found = if sets(libc::S_ISUID) && there.uid() != user {
        "setuid"
    } else if sets(libc::S_ISGID | libc::S_IXGRP) && there.gid() != group {
        "setgid"
    } else if user != 0 && has_capabilities() {
        "with file capabilities"
    } else {
        return None;
    };
    Some(format!("is {found}, and the kernel allows no library in such a program: run it as its own user"))
}
