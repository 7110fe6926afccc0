//! The places for the library, and refused places: a user who can replace the file can run code in
//! every program started with it.

mod programs;

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use programs::{Scratch, output_of};

const OTHER: u32 = 65534;

fn is_root() -> bool {
    let is_root = rustix::process::getuid().is_root();
    if !is_root {
        println!("skipped: only root can make a directory of another user");
    }
    is_root
}

fn directory(path: &Path, owner: u32, mode: u32) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    lchown(path, Some(owner), Some(owner)).unwrap();
}

/// The library that a program gets with that `XDG_CACHE_HOME`, and the messages.
fn placed(scratch: &Scratch, cache: &Path, options: &str) -> (String, String) {
    let mut run = scratch.run(&format!("--pool {options}"));
    run.env("XDG_CACHE_HOME", cache).args(["grep", "-m1", "-o", "/.*libhugefork-run-.*", "/proc/self/maps"]);
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn the_library_is_never_stored_where_another_user_could_replace_it() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("places");
    let at = |name: &str| scratch.path().join(name);
    // The state after one start by root, or prepared by the other user.
    let with_ours_in_it = |name: &str, owner: u32, mode: u32| {
        directory(&at(name).join("cache/hugefork"), 0, 0o755);
        directory(&at(name).join("cache"), 0, 0o755);
        directory(&at(name), owner, mode);
        at(name).join("cache")
    };
    let his = with_ours_in_it("his", OTHER, 0o755);
    let his_sticky = with_ours_in_it("his-sticky", OTHER, 0o1777);
    let groups = with_ours_in_it("groups", 0, 0o775);
    let everybodys = with_ours_in_it("everybodys", 0, 0o777);
    let fine = with_ours_in_it("fine", 0, 0o755);
    let sticky = with_ours_in_it("sticky", 0, 0o1777);
    directory(&at("last/hugefork"), OTHER, 0o755);
    directory(&at("open/hugefork"), 0, 0o1777);
    for (name, to, owner) in [("his-link", &fine, OTHER), ("our-link", &fine, 0), ("to-his", &his, 0)] {
        symlink(to, at(name)).unwrap();
        lchown(at(name), Some(owner), Some(owner)).unwrap();
    }
    symlink("loop", at("loop")).unwrap();
    for (cache, why) in [
        (&his, "belongs to user 65534"),
        (&his_sticky, "belongs to user 65534"),
        (&groups, "others can write to"),
        (&everybodys, "others can write to"),
        (&at("last"), "belongs to user 65534"),
        (&at("open"), "others can write to"),
        (&at("his-link"), "belongs to user 65534"),
        (&at("to-his"), "belongs to user 65534"),
        (&fine.join("../../his/cache"), "belongs to user 65534"),
    ] {
        let (library, said) = placed(&scratch, cache, "");
        assert!(!library.starts_with(scratch.path().to_str().unwrap()), "{}: {library}", cache.display());
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("hugefork: ") && first.contains(why) && first.contains(&library), "{said}");
        assert_eq!(placed(&scratch, cache, "-q"), (library, String::new()));
        // No file is left in there.
        let left = fs::read_dir(cache.join("hugefork")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{}", cache.display());
    }
    // No other user could replace it, but it does not exist.
    let (library, _) = placed(&scratch, &at("loop"), "");
    assert!(!library.starts_with(scratch.path().to_str().unwrap()), "{library}");
    for cache in [&fine, &sticky, &at("our-link"), &fine.join("../cache"), &at("fine/new/one")] {
        let (library, said) = placed(&scratch, cache, "");
        assert!(library.starts_with(scratch.path().to_str().unwrap()), "{}: {said}", cache.display());
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// In a user namespace, only this user has a name: root's directories seem to belong to `nobody`.
#[test]
fn a_place_is_found_where_root_has_no_name() {
    let scratch = Scratch::new("nameless");
    let mut command = std::process::Command::new("unshare");
    command.args([
        "-U",
        "-r",
        programs::HUGEFORK,
        "run",
        "-q",
        "--pool",
        "--",
        "grep",
        "-c",
        "libhugefork-run-",
        "/proc/self/maps",
    ]);
    command.env("XDG_CACHE_HOME", scratch.path());
    let works =
        std::process::Command::new("unshare").args(["-U", "-r", "true"]).status().is_ok_and(|done| done.success());
    if !works {
        println!("skipped: no user namespaces here");
        return;
    }
    assert!(output_of(&mut command).trim().parse::<u32>().unwrap() > 0);
}
