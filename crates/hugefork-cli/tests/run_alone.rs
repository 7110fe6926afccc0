//! `hugefork run --pool` with other programs, plugins, tools and limits: everything works as
//! without it.

mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;

use programs::ours::compiled;
use programs::{Running, Scratch, can_have_a_pool, has, has_pool, huge, output_of, taken, wait_for};

/// Compiles `source` with flags; `None` if that is impossible here.
fn built(scratch: &Scratch, name: &str, source: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    if !has(&[compiler]) {
        return None;
    }
    let (file, program) = (scratch.file(&format!("{name}.c"), source), scratch.path().join(name));
    let output = Command::new(compiler).arg(file).args(flags).arg("-o").arg(&program).output().unwrap();
    if !output.status.success() {
        println!("skipped: {compiler} {flags:?} makes no program here");
        return None;
    }
    Some(program)
}

/// Loads a library with `RTLD_DEEPBIND`. The library maps and unmaps memory, and forks.
const DEEP: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    size_t len = 64ul << 20;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 7, len);
    void *library = dlopen("libdeep.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!library) return puts(dlerror()), 1;
    int (*plugin)(char *, size_t) = (int (*)(char *, size_t))dlsym(library, "plugin");
    int bad = plugin(at, len), status;
    pid_t child = fork();
    if (child == 0) _exit(at[0] != 7 || at[len / 4 * 3] != 7 || at[len / 4] != 0);
    waitpid(child, &status, 0);
    bad += status != 0;
    printf("%d bad\n", bad);
    return bad;
}
"#;

const PLUGIN: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int plugin(char *at, size_t len) {
    char *text, *copy = strdup("x");
    if (asprintf(&text, "%s %d", copy, 7) < 0) return 1;
    free(copy);
    free(text);
    if (madvise(at + len / 4, len / 4, MADV_DONTNEED) || munmap(at + len / 2, 4 << 20)) return 1;
    char *new = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    new[5] = 1;
    return munmap(new, 16 << 20) != 0 || at[len / 4] != 0;
}
"#;

/// The library is found by the program's own search path, which libc determines by the return address.
#[test]
fn a_plugin_with_its_own_scope_can_use_the_programs_memory() {
    let scratch = Scratch::new("deep");
    let path = format!("-Wl,-rpath,{}", scratch.path().display());
    let plugin = built(&scratch, "libdeep.so", PLUGIN, "cc", &["-shared", "-fPIC"]);
    let program = built(&scratch, "deep", DEEP, "cc", &["-ldl", "-Wl,--enable-new-dtags", &path]);
    let (Some(_), Some(program)) = (plugin, program) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 bad\n");
    assert_eq!(output_of(scratch.bounded("-q --pool").arg(&program)), "0 bad\n");
}

/// Programs that cannot load or tolerate the library, started by one that has it.
#[test]
fn children_with_another_libc_or_sanitizers_start() {
    let scratch = Scratch::new("others");
    let source = "#include <stdio.h>\nint main(void) { puts(\"child\"); return 0; }\n";
    let kinds: [(&str, &[&str]); 5] = [
        ("musl-gcc", &[]),
        ("cc", &["-fsanitize=address"]),
        ("cc", &["-fsanitize=thread"]),
        ("cc", &["-static"]),
        ("cc", &["-m32"]),
    ];
    for (nth, (compiler, flags)) in kinds.into_iter().enumerate() {
        let Some(program) = built(&scratch, &format!("child-{nth}"), source, compiler, flags) else { continue };
        let script = format!("{}; exit $?", program.display());
        if Command::new(&program).output().is_ok_and(|plain| plain.status.success()) {
            assert_eq!(output_of(scratch.bounded("-q --pool").args(["sh", "-c", &script])), "child\n", "{flags:?}");
        }
    }
}

/// Fills 256 MiB, frees 32 of 33 pages, and waits.
const PARTS: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    size_t len = 256ul << 20, page = 4096;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, len);
    puts("filled");
    fflush(stdout);
    /* Memory that the kernel has made a huge page is mapped as one at the next touch. */
    struct pollfd input = { 0, POLLIN, 0 };
    do {
        for (size_t nth = 0; nth < len; nth += page) ((volatile char *)at)[nth];
    } while (poll(&input, 1, 10) == 0);
    getchar();
    for (size_t nth = 0; nth < len / page; nth++)
        if (nth % 33) madvise(at + nth * page, page, MADV_DONTNEED);
    puts("dropped");
    fflush(stdout);
    getchar();
    int bad = 0;
    for (size_t nth = 0; nth < len / page; nth++) bad += at[nth * page] != (nth % 33 ? 0 : 1);
    printf("%d bad\n", bad);
    return bad != 0;
}
"#;

#[test]
fn memory_freed_in_parts_is_returned() {
    let scratch = Scratch::new("parts");
    let Some(program) = compiled(&scratch, "parts", PARTS) else { return };
    if !can_have_a_pool(&scratch) {
        return;
    }
    let mut running = Running::start(scratch.run("-q --pool").arg(program));
    let pid = running.pid();
    let mut line = running.lines();
    let mut go_on = || std::io::Write::write_all(running.child().stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(line(), "filled");
    assert!(has_pool(pid));
    wait_for("huge pages", || (huge(pid) > 0).then_some(()));
    go_on();
    assert_eq!(line(), "dropped");
    wait_for("the memory to be given back", || (taken(pid) < 48 << 20).then_some(()));
    go_on();
    assert_eq!(line(), "0 bad");
}

/// Threads that each use little of a big mapping.
const SPARSE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static void *body(void *none) {
    char *at = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, 64 << 10);
    return at;
}
int main(void) {
    pthread_t threads[50];
    for (int nth = 0; nth < 50; nth++) pthread_create(&threads[nth], NULL, body, NULL);
    for (int nth = 0; nth < 50; nth++) pthread_join(threads[nth], NULL);
    puts("used");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

#[test]
fn sparsely_used_mappings_take_no_more_memory() {
    let scratch = Scratch::new("sparse");
    let Some(program) = compiled(&scratch, "sparse", SPARSE) else { return };
    let setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    if std::fs::read_to_string(setting).is_ok_and(|text| text.contains("[always]") || text.contains("[force]")) {
        return println!("skipped: {setting} has the kernel make huge pages of all shared memory");
    }
    let used = |command: &mut Command| {
        let mut running = Running::start(command);
        assert_eq!(running.lines()(), "used");
        taken(running.pid())
    };
    let plain = used(&mut Command::new(&program));
    let ours = used(scratch.run("-q --pool").arg(&program));
    // The library itself has about 2 MiB of code and data.
    assert!(ours <= plain / 10 * 12 + (4 << 20), "{ours} bytes, and {plain} without");
}

/// Two children at a time, in a group with room for the program and them.
const CHILDREN: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    size_t len = 64ul << 20;
    int failed = 0;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, len);
    for (int round = 0; round < 40; round++) {
        // The children live until both exist and the parent has written.
        pid_t children[2];
        int ends[2];
        if (pipe(ends) != 0) return 99;
        for (int nth = 0; nth < 2; nth++) {
            children[nth] = fork();
            if (children[nth] < 0) failed++;
            if (children[nth] == 0) {
                char none;
                close(ends[1]);
                _exit(read(ends[0], &none, 1) != 0 || at[0] != (char)(1 + round));
            }
        }
        for (size_t page = 0; page < len; page += 4096) at[page]++;
        close(ends[0]);
        close(ends[1]);
        for (int nth = 0; nth < 2; nth++) {
            int status = 0;
            if (children[nth] > 0) waitpid(children[nth], &status, 0);
            failed += status != 0;
        }
    }
    printf("%d failed\n", failed);
    return failed;
}
"#;

#[test]
fn a_fork_that_just_fits_does_not_fail() {
    let scratch = Scratch::new("pids");
    let Some(program) = compiled(&scratch, "pids", CHILDREN) else { return };
    for most in [3, 4, 12, 1000] {
        let Some(group) = Pids::new(most) else { return };
        let command = scratch.run("-q --pool");
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args()).arg(&program);
        within.env("HUGEFORK_POOL", "all").env_remove("LD_PRELOAD");
        assert_eq!(output_of(&mut within), "0 failed\n", "{most}");
    }
}

/// A control group with a limit on its threads.
struct Pids(PathBuf);

impl Pids {
    fn new(most: u32) -> Option<Pids> {
        let name = format!("hugefork-test-pids-{}", std::process::id());
        let made = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|root| {
            let group = Path::new(root).join(&name);
            std::fs::create_dir(&group).ok()?;
            let group = Pids(group);
            std::fs::write(group.0.join("pids.max"), most.to_string()).ok()?;
            Some(group)
        });
        if made.is_none() {
            println!("skipped: no control group can be made here, which root can");
        }
        made
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        wait_for("the group to be empty", || std::fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn valgrind_works_as_without_the_library() {
    let scratch = Scratch::new("valgrind");
    let Some(program) = compiled(&scratch, "children", CHILDREN) else { return };
    if !has(&["valgrind"]) {
        return;
    }
    assert_eq!(output_of(scratch.bounded("-q --pool").args(["valgrind", "-q"]).arg(&program)), "0 failed\n");
}
