//! The reasons why the library cannot be loaded into a program: one sentence each, with a remedy if
//! there is one.

use std::os::unix::fs::MetadataExt;

use hugefork_program::ProgramMemory;
use rustix::process::{getgid, getuid};

use super::image::Image;
use super::program::Program;

/// The first reason that applies, if any.
pub(super) fn of(program: &Program, image: &Image) -> Option<String> {
    not_loadable(image).or_else(|| secure(program)).or_else(|| watched(image))
}

/// The reason why no program can have a pool on this machine or under this process's limits.
pub(super) fn of_the_machine() -> Option<String> {
    let unfit = hugefork_preload::fit::why_no_pool().map(str::to_owned);
    unfit.or_else(|| ProgramMemory::new(2 << 20).err().map(|why| format!("there is no pool here: {why}")))
}

fn not_loadable(image: &Image) -> Option<String> {
    if !image.is_of_this_machine {
        return Some("is built for another architecture, and hugefork's library for this one".to_owned());
    }
    match image.loader.as_deref() {
        None if image.is_go => Some("is a Go program without libc, which cannot load a library".to_owned()),
        None => Some("is linked statically and cannot load a library: link it dynamically".to_owned()),
        Some(loader) if loader.contains("ld-musl") => {
            Some("uses musl, and hugefork's library needs glibc: build it for glibc".to_owned())
        }
        Some(_) => None,
    }
}

/// Programs with more rights than their caller do not load libraries that the caller names.
fn secure(program: &Program) -> Option<String> {
    // With this setting they get no additional rights. SAFETY: the call takes numbers.
    if unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 {
        return None;
    }
    let there = std::fs::metadata(&program.image).ok()?;
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let sets = |bit: u32| there.mode() & bit != 0;
    let found = if sets(libc::S_ISUID) && there.uid() != user {
        "setuid"
    } else if sets(libc::S_ISGID) && sets(libc::S_IXGRP) && there.gid() != group {
        "setgid"
    } else if user != 0 && has_capabilities(program) {
        "with file capabilities"
    } else {
        return None;
    };
    Some(format!("is {found}, and the kernel allows no library in such a program: run it as its own user"))
}

fn has_capabilities(program: &Program) -> bool {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(&program.image, "security.capability", &mut value).is_ok()
}

/// Sanitizers lay out all memory themselves, and interpose the same functions.
fn watched(image: &Image) -> Option<String> {
    let sanitizer = image.sanitizer()?;
    Some(format!("is built with {sanitizer}, which manages memory itself: build it without"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_reason() {
        let plain = Image {
            is_of_this_machine: true,
            loader: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            ..Image::default()
        };
        let why = |image: &Image| not_loadable(image).or_else(|| watched(image)).unwrap_or_default();
        assert_eq!(why(&plain), "");
        assert!(why(&Image { is_of_this_machine: false, ..plain.clone() }).contains("architecture"));
        assert!(why(&Image { loader: None, ..plain.clone() }).contains("statically"));
        assert!(why(&Image { loader: None, is_go: true, ..plain.clone() }).contains("Go"));
        assert!(why(&Image { loader: Some("/lib/ld-musl-x86_64.so.1".to_owned()), ..plain.clone() }).contains("musl"));
        assert!(why(&Image { needs: vec!["libasan.so.8".to_owned()], ..plain.clone() }).contains("AddressSanitizer"));
        assert!(why(&Image { has: vec!["__tsan_init".to_owned()], ..plain }).contains("ThreadSanitizer"));
    }
}
