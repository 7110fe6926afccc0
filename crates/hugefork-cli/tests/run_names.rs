//! The library interposes all names that libc has for its functions.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Object, ObjectSymbol};

use programs::ours::compiled;
use programs::{LIBRARY, Running, Scratch, has_pool, wait_for};

/// Names of libc for an interposed function, or similar ones, that need no interposition.
const LEFT_TO_LIBC: [(&str, &str); 20] = [
    ("__fcntl_nocancel", "private to glibc's own libraries"),
    ("__libc_fcntl64", "private to glibc's own libraries"),
    ("__libc_fork", "private to glibc's own libraries"),
    ("__madvise", "private to glibc's own libraries"),
    ("__mmap", "private to glibc's own libraries"),
    ("__mprotect", "private to glibc's own libraries"),
    ("__munmap", "private to glibc's own libraries"),
    ("__open64_nocancel", "private to glibc's own libraries"),
    ("__open_nocancel", "private to glibc's own libraries"),
    ("__openat64_nocancel", "private to glibc's own libraries"),
    ("__openat_nocancel", "private to glibc's own libraries"),
    ("pthread_atfork", "calls `__register_atfork`, where it is not linked into the program, which does so as well"),
    ("creat", "takes no flags"),
    ("creat64", "takes no flags"),
    ("fopen", "has no mode for `O_DIRECT`"),
    ("fopen64", "has no mode for `O_DIRECT`"),
    ("freopen", "has no mode for `O_DIRECT`"),
    ("freopen64", "has no mode for `O_DIRECT`"),
    ("_IO_fopen", "has no mode for `O_DIRECT`"),
    ("vfork", "the child has its parent's memory until it is another program"),
];

/// Names in newer versions of libc.
const NEWER: [&str; 1] = ["mseal"];

/// The functions that a file exports, and their addresses.
fn functions(file: &Path) -> BTreeMap<String, u64> {
    let bytes = fs::read(file).unwrap();
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*bytes).unwrap();
    let all =
        file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == object::SymbolKind::Text);
    all.map(|symbol| (symbol.name().unwrap().to_owned(), symbol.address())).collect()
}

/// A name without the marks of its variants.
fn plain(name: &str) -> &str {
    let name = name.trim_start_matches('_');
    let mut name = name.strip_prefix("libc_").or(name.strip_prefix("IO_")).unwrap_or(name);
    for end in ["_nocancel", "_chk", "_time64", "_2", "64"] {
        name = name.strip_suffix(end).unwrap_or(name);
    }
    name.strip_suffix("at").filter(|name| *name == "open").unwrap_or(name)
}

/// The path of this process's libc.
fn libc() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path =
        maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.contains("/libc.so.6")));
    path.expect("tests are linked against glibc").to_owned()
}

#[test]
fn every_libc_name_of_a_function_is_interposed() {
    let ours = functions(Path::new(LIBRARY));
    let libcs = functions(Path::new(&libc()));
    let mut lacking = Vec::new();
    for (name, address) in &libcs {
        if ours.contains_key(name) {
            continue;
        }
        let same = ours.keys().find(|ours| libcs.get(*ours) == Some(address));
        let alike = || ours.keys().find(|ours| plain(ours) == plain(name));
        if let Some(of) = same.or_else(alike)
            && !LEFT_TO_LIBC.iter().any(|(left, _)| left == name)
        {
            lacking.push(format!("{name}, as {of}"));
        }
    }
    assert!(lacking.is_empty(), "libc has names that no library stands in for: {lacking:#?}");
    // The library exports no other name that a program could call by mistake.
    let is_known = |name: &str| libcs.contains_key(name) || name.starts_with("hugefork_") || NEWER.contains(&name);
    let others: Vec<_> = ours.keys().filter(|name| !is_known(name)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// While glibc knows of one thread, its mutexes do not exclude threads that it does not know.
#[test]
fn the_library_takes_no_mutex_of_libcs() {
    let bytes = fs::read(LIBRARY).unwrap();
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*bytes).unwrap();
    // The unwinder would use mutexes, if it were linked.
    let wanted = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() && !symbol.is_weak());
    let names: Vec<_> = wanted.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    assert!(names.iter().any(|name| name == "dlsym"), "{names:?}");
    let locks = ["pthread_mutex_", "pthread_rwlock_", "pthread_spin_", "pthread_cond_"];
    let taken: Vec<_> = names.iter().filter(|name| locks.iter().any(|lock| name.starts_with(lock))).collect();
    assert!(taken.is_empty(), "{taken:?}");
}

/// Calls that pin pages are noticed under every name.
#[test]
fn memory_pinned_under_any_function_name_is_handed_over() {
    let scratch = Scratch::new("doors");
    let Some(program) = compiled(&scratch, "names", include_str!("programs/names.c")) else { return };
    let opens = ["open", "open64", "__open", "__open64", "__open_2", "__open64_2"];
    let opens_at = ["openat", "openat64", "__openat_2", "__openat64_2", "open_by_handle_at"];
    let makes = ["mkostemp", "mkostemp64", "mkostemps", "mkostemps64", "shm_open"];
    let controls = ["fcntl", "fcntl64", "__fcntl"];
    let sockets = ["setsockopt 1 60", "setsockopt 283 4", "setsockopt 279 1", "setsockopt 279 7"];
    for words in [&opens[..], &opens_at, &makes, &controls, &sockets].concat() {
        let mut running = Running::start(scratch.run("-q --pool").arg(&program).args(words.split(' ')));
        let mut said = [0; 5];
        std::io::Read::read_exact(running.child().stdout.as_mut().unwrap(), &mut said).unwrap();
        if &said == b"none\n" {
            println!("skipped: this libc has no {words}");
            continue;
        }
        wait_for(&format!("the pool to be gone after {words}"), || (!has_pool(running.pid())).then_some(()));
    }
}
