//! Core dumps of programs under `hugefork run`.

mod programs;

use std::fs;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use programs::Scratch;
use programs::ours::{MODES, compiled};

const PROGRAM: &str = include_str!("programs/core.c");
const LEN: u64 = 32 << 20;

/// Number of words of the program's memory that a core dump contains correctly.
fn words(core: &Path, memory: u64) -> u64 {
    let bytes = fs::read(core).unwrap();
    let header = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = header.endian().unwrap();
    let parts = header.program_headers(endian, &*bytes).unwrap().iter().filter(|part| part.p_type(endian) == PT_LOAD);
    let mut right = 0;
    for part in parts {
        let (start, data) = (part.p_vaddr(endian), part.data(endian, &*bytes).unwrap_or(&[]));
        let words = data.chunks_exact(8).zip((start..).step_by(8));
        let ours = words.filter(|(_, at)| (memory..memory + LEN).contains(at));
        right += ours.filter(|(word, at)| *word == value((at - memory) / 8).to_ne_bytes()).count() as u64;
    }
    right
}

fn value(nth: u64) -> u64 {
    nth.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1)
}

/// Whether core dumps are files in the working directory.
fn dumps_here() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let here = !pattern.starts_with('|') && !pattern.contains('/') && pattern.trim_end() == "core";
    if !here {
        let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "core"), "HUGEFORK_REQUIRE names core");
        println!("skipped: /proc/sys/kernel/core_pattern is not `core` but {}", pattern.trim_end());
    }
    here
}

/// The only core dump in the directory of a test.
fn core(scratch: &Scratch) -> PathBuf {
    let is_core = |path: &PathBuf| {
        path.file_name().unwrap().to_str().unwrap().starts_with("core") && path.extension().is_none_or(|end| end != "c")
    };
    let all: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).filter(is_core).collect();
    let [core] = &all[..] else { panic!("{all:?}") };
    core.clone()
}

#[test]
fn a_core_dump_of_any_process_has_the_programs_memory() {
    if !dumps_here() {
        return;
    }
    let scratch = Scratch::new("dumped");
    let Some(program) = compiled(&scratch, "dumps", PROGRAM) else { return };
    for mode in MODES {
        for who in ["child", "grandchild", "parent"] {
            let output = scratch.run(mode).arg(&program).arg(who).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let memory = u64::from_str_radix(said.trim(), 16).unwrap();
            let core = core(&scratch);
            assert_eq!(words(&core, memory), LEN / 8, "{mode}: {who}");
            fs::remove_file(core).unwrap();
        }
    }
}
