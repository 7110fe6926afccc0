//! Programs in C and C++ on the shared and the static library, also under AddressSanitizer.
//!
//! `tests/c/*.c` and `*.cpp` are the tests; here they are compiled and run.

mod common;
#[path = "common/declarations.rs"]
mod declarations;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use common::{Library, Program, ends_well, folder, runs, scratch, words};
use declarations::Declarations;

/// Compiles and runs a source with both libraries, and under AddressSanitizer.
fn everywhere(source: &str) {
    for library in [Library::Shared, Library::Static] {
        runs(Program::of(&format!("tests/c/{source}"), library, &format!("{source}-{library:?}")));
    }
    sanitized(source, "");
}

/// Compiles and runs a source under AddressSanitizer, which also detects leaks.
fn sanitized(source: &str, options: &str) {
    ends_well(&under_address_sanitizer(source, options));
}

fn under_address_sanitizer(source: &str, options: &str) -> Output {
    let name = format!("{source}-asan{}", options.replace([':', '='], "-"));
    let program = Program::of(&format!("tests/c/{source}"), Library::Shared, &name);
    let mut program = program.with(&["-fsanitize=address", "-fno-omit-frame-pointer"]).build();
    program.env("ASAN_OPTIONS", options).output().unwrap()
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                everywhere(concat!(stringify!($name), ".c"));
            }
        )*
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];
    };
}

programs! { handles pools regions snapshots pins transfers observers operations threads forked inherited heaps full_pool mappings changes exports resets }

#[test]
fn out_of_addresses() {
    // AddressSanitizer itself needs more addresses than the program allows.
    for library in [Library::Shared, Library::Static] {
        runs(Program::of("tests/c/out_of_addresses.c", library, &format!("out-of-addresses-{library:?}")));
    }
}

#[test]
fn cplusplus() {
    for library in [Library::Shared, Library::Static] {
        runs(Program::of("tests/c/cplusplus.cpp", library, &format!("cplusplus-{library:?}")));
    }
    everywhere("classes.cpp");
}

#[test]
fn address_sanitizer_that_handles_no_faults() {
    sanitized("regions.c", "handle_segv=0");
    sanitized("full_pool.c", "handle_segv=0:handle_sigbus=0");
}

#[test]
fn address_sanitizer_reports_foreign_faults() {
    let said = words(&under_address_sanitizer("foreign_fault.c", ""));
    assert!(said.contains("AddressSanitizer: SEGV on unknown address 0x000000000008"), "{said}");
}

#[test]
fn gdb_stops_only_at_a_foreign_fault_with_its_stack() {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: gdb is not installed");
        return;
    }
    for library in [Library::Shared, Library::Static] {
        let program = Program::of("tests/c/foreign_fault.c", library, &format!("gdb-{library:?}")).build();
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-x"]).arg(folder().join("hugefork.gdb"));
        gdb.args(["-ex", "run", "-ex", "backtrace", "-ex", "kill", "--args"]).arg(program.get_program());
        program.get_envs().for_each(|(name, value)| _ = gdb.env(name, value.unwrap_or_default()));
        let said = words(&gdb.output().unwrap());
        let frame = |what: &str| said.lines().position(|line| line.starts_with('#') && line.contains(what));
        let frames = ["hugefork_foreign_fault", "<signal handler called>", "main ("].map(frame);
        assert!(frames.iter().all(Option::is_some) && frames.is_sorted(), "{said}");
        // The first write of the program comes before that point.
        assert_eq!(said.matches("Breakpoint 1, ").count(), 1, "{said}");
    }
}

/// AddressSanitizer then keeps the handler, without a message.
#[test]
fn pool_creation_fails_under_an_address_sanitizer_that_owns_faults() {
    for options in ["handle_segv=2", "allow_user_segv_handler=0"] {
        let said = words(&under_address_sanitizer("pins.c", options));
        assert!(said.contains("AddressSanitizer: set handle_segv=1"), "{options}: {said}");
    }
}

/// The library detects valgrind by the names of mapped files. Here a file with such a name is enough, and valgrind
/// itself is used if installed.
#[test]
fn under_valgrind_there_is_no_pool() {
    let refused = |mut program: Command| {
        let output = program.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        assert!(words(&output).contains("under valgrind"), "{}", words(&output));
    };
    let mut program = Program::of("tests/c/pins.c", Library::Shared, "valgrind").build();
    let (folder, preloaded) = (scratch("valgrind-preloaded"), "./vgpreload_core-amd64-linux.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(folder.join(preloaded));
    assert!(compiler.status().unwrap().success());
    refused({
        // The loader splits the variable at spaces, so the path must not contain any.
        program.env("LD_PRELOAD", preloaded).current_dir(&folder);
        program
    });
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    for library in [Library::Shared, Library::Static] {
        let program = Program::of("tests/c/pins.c", library, &format!("valgrind-{library:?}")).build();
        let mut under = Command::new("valgrind");
        under.args(["--quiet", "--tool=none"]).arg(program.get_program());
        refused(under);
    }
}

#[test]
fn a_foreign_fault_ends_a_program_as_usual() {
    let status = Program::of("tests/c/foreign_fault.c", Library::Shared, "foreign-fault").build().status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn every_program_is_run() {
    let alone = ["classes.cpp", "cplusplus.cpp", "foreign_fault.c", "out_of_addresses.c", "check.h"].map(str::to_owned);
    let mut run: Vec<String> = PROGRAMS.iter().map(|name| format!("{name}.c")).chain(alone).collect();
    let found = fs::read_dir(folder().join("tests/c")).unwrap().flatten();
    let mut found: Vec<String> = found.map(|entry| entry.file_name().into_string().unwrap()).collect();
    run.sort();
    found.sort();
    assert_eq!(run, found);
}

/// Errors that no program can cause here, with the reason.
const NOT_PROVOKED: [(&str, &str); 7] = [
    ("HF_E_UNREADABLE_SIZE", "no function takes a size as text"),
    ("HF_E_UNKNOWN_BACKING", "no function takes a backing as text"),
    ("HF_E_NOT_A_VIEW", "C has no typed views"),
    ("HF_E_BAD_KERNEL", "a kernel that is not there is HF_E_BAD_SETTING"),
    ("HF_E_OUT_OF_MEMORY", "that takes the memory of the machine"),
    ("HF_E_PRESSURE_UNWATCHED", "a pool goes without a watcher"),
    ("HF_E_PANIC", "there is no known defect; boundary.rs has a test of its own"),
];

#[test]
fn every_function_and_every_error_is_tested() {
    let sources = fs::read_dir(folder().join("tests/c")).unwrap().flatten();
    let text: String = sources.map(|entry| fs::read_to_string(entry.path()).unwrap()).collect();
    let declared = Declarations::of_header();
    for name in declared.functions.keys() {
        assert!(text.contains(&format!("{name}(")), "no program calls {name}");
    }
    for name in declared.constants.keys() {
        let is_provoked = if name.starts_with("HF_E_") {
            text.contains(&format!("FAILS({name},"))
        } else {
            text.contains(name.as_str())
        };
        let is_excused = NOT_PROVOKED.iter().any(|(excused, _)| excused == name);
        assert_ne!(is_provoked, is_excused, "{name}");
    }
}
