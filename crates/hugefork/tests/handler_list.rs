//! Finds all code that the fault handler can run, in the machine code of this very program. `docs/safety/handler.md`
//! lists its files, and none of it allocates, takes a foreign lock or touches thread-local state. `handler_allocations`
//! watches the paths that its tests take; this test covers all paths.
//!
//! Code that runs while a panic unwinds does not count: the handler does not panic.

#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

#[cfg(target_arch = "x86_64")]
#[path = "handler_list/graph.rs"]
mod graph;

use std::collections::BTreeMap;
use std::path::Path;

use hugefork::{Backing, Pool};

#[cfg(target_arch = "x86_64")]
use graph::{Id, Program, Reached};

/// The functions where the handler begins, and those that it calls through pointers of its own.
const ROOTS: [Root; 6] = [
    // The kernel calls it.
    Root::Function("hugefork::sys::linux::handlers::entry"),
    // The chain of handlers, which knows no faults of regions, calls these two.
    Root::Function("hugefork::fault::delivery::concerns"),
    Root::Function("hugefork::fault::delivery::resolve"),
    // The kernels call it between the steps of a gigantic block.
    Root::Function("hugefork::sys::linux::schedule::yield_now"),
    // A search for blocks calls regions and snapshots through these.
    Root::Trait("hugefork::pool::holders::Holder"),
    Root::Trait("hugefork::pool::holders::LazyHolder"),
];

/// The functions with calls whose target the machine code does not name, and these targets.
const DYNAMIC: [(&str, &str); 10] = [
    ("hugefork::sys::linux::handlers::on_fault", "`concerns`, a root"),
    ("hugefork::sys::linux::handlers::resolve", "`resolve`, a root, and the line that there is no room"),
    ("hugefork_linux::stack::call_on", "what goes on on another stack, whose address the caller takes"),
    ("hugefork::sys::linux::handlers::pass_on", "an earlier handler of the program: the fault is not hugefork's"),
    ("core::fmt::", "what formats, and the line: they count where their addresses are taken"),
    ("hugefork::types::observer::Changing", "the program's `Observer`, which has to keep the same rules"),
    ("hugefork::pool::holders::Visit", "`Holder`, a root"),
    ("hugefork::pool::shortage::", "`Holder` and `LazyHolder`, roots"),
    ("hugefork::region::write::revoke::", "`Holder`, a root"),
    ("hugefork_kernels::kernel::Kernel::run", "`yield_now`, a root"),
];

/// Functions of shared libraries that the handler may call: those allowed in signal handlers (`signal-safety(7)`),
/// those that only read memory of their own, and plain system calls.
const IMPORTS: [&str; 18] = [
    "__errno_location",
    "_exit",
    "bcmp",
    "clock_gettime",
    "getpid",
    "gettid",
    "madvise",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "pthread_self",
    "raise",
    "sigaction",
    "sigdelset",
    "sigismember",
    "strlen",
    "syscall",
];

/// Names by which forbidden functions are recognised: allocators including the engine's own heap, std's locks, threads,
/// files and streams.
const FORBIDDEN: [&str; 11] = [
    "__rust_alloc",
    "__rust_dealloc",
    "__rust_realloc",
    "dlmalloc::",
    "std::sync::poison::",
    "std::sys::sync::",
    "std::thread::",
    "std::io::",
    "std::fs::",
    "std::sys::fs::",
    "std::env::",
];

/// Functions that never return, at which the search ends.
const ENDS: [&str; 9] = [
    "abort",
    "std::process::abort",
    "core::panicking::",
    "std::panicking::",
    "core::option::unwrap_failed",
    "core::option::expect_failed",
    "core::result::unwrap_failed",
    "core::slice::index::slice_index_fail",
    "alloc::alloc::handle_alloc_error",
];

enum Root {
    Function(&'static str),
    /// All methods of a trait, for every type.
    Trait(&'static str),
}

impl Root {
    fn is(&self, name: &str) -> bool {
        match self {
            Root::Function(own) => {
                name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with("::<"))
            }
            Root::Trait(own) => {
                let of_a_type = [format!("<impl {own} for hugefork::"), format!(" as {own}>::")];
                of_a_type.iter().any(|part| name.contains(part)) || name.starts_with(&format!("{own}::"))
            }
        }
    }
}

fn is_end(name: &str) -> bool {
    ENDS.iter().any(|end| if end.ends_with("::") { name.starts_with(end) } else { name == *end })
}

fn is_own(name: &str) -> bool {
    let name = name.trim_start_matches('<');
    ["hugefork::", "hugefork_kernels::", "hugefork_linux::"].iter().any(|own| name.starts_with(own))
}

/// Whether the lists of this test do not fit the build. An optimised build drops functions and inlines others, so it
/// shows what is done, but not where. A static build contains libc, whose functions the lists do not name.
fn is_of_another_build() -> bool {
    let why = match () {
        () if !cfg!(debug_assertions) => "this build is optimised",
        () if cfg!(target_feature = "crt-static") => "this build contains libc",
        () => return false,
    };
    println!("skipped: {why}");
    true
}

/// Calls `look` with this program. It contains the handler because it writes to a region.
#[cfg(target_arch = "x86_64")]
fn with_program(look: impl FnOnce(&Program<'_>)) {
    let pool = Pool::builder().capacity(4 << 20).backing(Backing::ShmemBase).build().unwrap();
    let mut region = pool.region(2 << 20).unwrap();
    region.as_mut_slice()[0] = 1;
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[0] = 2;
    assert_eq!(snapshot[0], 1);
    look(&Program::read(&std::fs::read(std::env::current_exe().unwrap()).unwrap(), is_end));
}

/// Calls `look` with everything that the handler can reach.
#[cfg(target_arch = "x86_64")]
fn with_handler(look: impl FnOnce(&Program<'_>, &Reached<'_, '_>)) {
    with_program(|program| {
        let roots = ROOTS.iter().map(|root| program.named(|name| root.is(name)));
        let roots: Vec<Vec<Id>> = roots.collect();
        assert!(roots.iter().all(|found| !found.is_empty()), "a root is in no function's name: {roots:?}");
        look(program, &program.reach(&roots.concat()));
    });
}

/// The paths to forbidden code, one for each function of ours that contains or calls it.
#[cfg(target_arch = "x86_64")]
fn wrong(program: &Program<'_>, reached: &Reached<'_, '_>) -> Vec<String> {
    let is_wrong = |id: &&Id| {
        let function = &program.functions[**id];
        let is_forbidden = FORBIDDEN.iter().any(|part| function.name.contains(part));
        let is_foreign = function.is_import() && !IMPORTS.contains(&function.name.as_str());
        !is_end(&function.name) && (is_forbidden || is_foreign)
    };
    let mut ways = BTreeMap::new();
    for &id in reached.order.iter().filter(is_wrong).chain(&reached.thread_local) {
        let offender = reached.way_back(id).find(|name| is_own(name));
        ways.entry(offender).or_insert_with(|| reached.way_to(id));
    }
    ways.into_values().collect()
}

/// The caller of each call whose target the machine code does not name: formatting, or the nearest function of ours on
/// the path there.
#[cfg(target_arch = "x86_64")]
fn dynamic<'a>(reached: &Reached<'a, '_>) -> Vec<&'a str> {
    let nearest =
        |id: &Id| reached.way_back(*id).find(|name| is_own(name) || name.contains("core::fmt::")).unwrap_or("nobody");
    reached.dynamic.iter().map(nearest).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_handler_comes_to_no_allocator_no_foreign_lock_and_no_thread_local_state() {
    with_handler(|program, reached| {
        let wrong = wrong(program, reached);
        assert!(wrong.is_empty(), "the fault handler may come to\n\n  {}", wrong.join("\n\n  "));
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_the_handler_calls_by_pointer_is_known() {
    if is_of_another_build() {
        return;
    }
    with_handler(|_, reached| {
        let callers = dynamic(reached);
        for caller in &callers {
            let is_known = DYNAMIC.iter().any(|(known, _)| caller.contains(known));
            assert!(is_known, "{caller} calls by a pointer: say in DYNAMIC what, and make it a root if it is ours");
        }
        for (known, what) in DYNAMIC {
            let is_used = callers.iter().any(|caller| caller.contains(known));
            assert!(is_used, "{known} calls nothing by a pointer any more: take it out of DYNAMIC ({what})");
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_list_of_what_the_handler_runs_is_complete() {
    if is_of_another_build() {
        return;
    }
    with_handler(|program, reached| {
        let mut ways = BTreeMap::new();
        for &id in &reached.order {
            for file in program.sources(id).iter().filter_map(|file| listed_name(file)) {
                ways.entry(file.to_owned()).or_insert_with(|| reached.way_to(id));
            }
        }
        assert!(!ways.is_empty(), "this program says nothing of its sources: build it with debug information");
        let listed = listed();
        let missing = ways.iter().filter(|(file, _)| !listed.contains_key(*file));
        let missing = missing.map(|(file, way)| format!("{file} is missing: the handler comes to it by\n      {way}"));
        let extra = listed.keys().filter(|file| !ways.contains_key(*file));
        let extra = extra.map(|file| format!("{file} is listed, and the handler does not come to it"));
        let mute = listed.iter().filter(|(_, what)| what.is_empty());
        let mute = mute.map(|(file, _)| format!("{file} is listed without what the handler does there"));
        let wrong: Vec<_> = missing.chain(extra).chain(mute).collect();
        assert!(wrong.is_empty(), "the list in docs/safety/handler.md:\n\n  {}", wrong.join("\n\n  "));
    });
}

/// The name of a source file in the list, if it is one of ours.
fn listed_name(file: &str) -> Option<&str> {
    let (_, of_engine) = file.rsplit_once("crates/hugefork/src/").unzip();
    let below = ["hugefork-kernels/src/", "hugefork-linux/src/"].iter().find_map(|folder| file.find(folder));
    of_engine.or_else(|| below.map(|at| &file[at..]))
}

/// The list in `docs/safety/handler.md`: files, and what the handler does there.
fn listed() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/safety/handler.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("<!-- handler: begin -->").unwrap();
    let (list, _) = rest.split_once("<!-- handler: end -->").unwrap();
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`').to_owned());
        Some((cells.next()?, cells.next()?))
    };
    // Skips the names of the columns and the line below them.
    let rows =
        list.trim().lines().skip(2).map(|line| row(line).unwrap_or_else(|| panic!("not a row of the list: {line}")));
    rows.collect()
}

#[cfg(target_arch = "x86_64")]
mod offenders {
    //! Code that the handler must not contain, one function for each kind.

    use std::cell::Cell;
    use std::hint::black_box;
    use std::sync::Mutex;

    pub(super) fn allocates() {
        black_box(Box::new(black_box(1)));
    }

    pub(super) fn frees(mut list: Vec<u8>) {
        list.clear();
    }

    pub(super) fn locks() {
        static LOCK: Mutex<u32> = Mutex::new(0);
        *LOCK.lock().unwrap() += 1;
    }

    pub(super) fn prints() {
        println!("aloud");
    }

    pub(super) fn has_a_thread_local() {
        thread_local!(static OWN: Cell<u32> = const { Cell::new(0) });
        OWN.set(OWN.get() + 1);
    }

    pub(super) fn hands_on(act: &mut dyn FnMut()) {
        act();
    }

    pub(super) fn takes_an_address() -> fn() {
        allocates
    }

    pub(super) fn makes_a_table() {
        black_box(&Both as &dyn Says).something();
    }

    pub(super) fn panics(number: u32) {
        assert!(number > 0, "{number} is not enough");
    }

    trait Says {
        fn something(&self);
    }

    struct Both;

    impl Says for Both {
        fn something(&self) {
            allocates();
        }
    }

    /// Calls all of them, so that the program contains them.
    pub(super) fn all() {
        allocates();
        frees(black_box(Vec::new()));
        locks();
        prints();
        has_a_thread_local();
        hands_on(&mut allocates);
        black_box(takes_an_address());
        makes_a_table();
        panics(1);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_the_handler_must_not_do_would_be_found() {
    if is_of_another_build() {
        return;
    }
    offenders::all();
    with_program(|program| {
        let found = |name: &str| {
            let roots = program.named(|own| own == format!("handler_list::offenders::{name}"));
            assert_eq!(roots.len(), 1, "{name}");
            let reached = program.reach(&roots);
            (wrong(program, &reached).join("\n"), reached.dynamic.len())
        };
        for (name, what) in [
            ("allocates", "__rust_alloc"),
            ("frees", "__rust_dealloc"),
            ("locks", "std::sync::poison::"),
            ("prints", "std::io::"),
            ("has_a_thread_local", "thread_local"),
            ("takes_an_address", "__rust_alloc"),
            ("makes_a_table", "__rust_alloc"),
        ] {
            let (ways, _) = found(name);
            assert!(ways.contains(what), "{name} is not found: {ways}");
        }
        assert_eq!(found("hands_on"), (String::new(), 1), "a call by a pointer");
        assert_eq!(found("panics").0, "", "the ways end at a panic");
    });
}

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn the_list_of_what_the_handler_runs_is_complete() {
    println!("skipped: only machine code of x86-64 is read");
}
