//! `install.sh` and the files that it installs: names, symbols, pkg-config, CMake, suppressions.

mod common;
#[path = "common/declarations.rs"]
mod declarations;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Library, Program, built, folder, header, scratch, words};
use declarations::Declarations;

fn install(arguments: &[&str], to: &Path) -> Output {
    let mut script = Command::new(folder().join("install.sh"));
    script.args(arguments).env("LIBRARIES", built()).env("DESTDIR", to).env_remove("LIBDIR");
    script.output().unwrap()
}

#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The files below a folder.
fn files(folder: &Path) -> BTreeSet<String> {
    let found = said(Command::new("find").args([".", "!", "-type", "d"]).current_dir(folder));
    found.lines().map(|path| path.trim_start_matches("./").to_owned()).collect()
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

#[test]
fn one_command_installs_and_one_uninstalls() {
    let to = scratch("install");
    let output = install(&["/opt/hugefork"], &to);
    assert!(output.status.success() && words(&output).contains("is installed below"), "{}", words(&output));
    let wanted = [
        "include/hugefork.h".to_owned(),
        "include/hugefork.hpp".to_owned(),
        "lib/cmake/hugefork/hugeforkConfig.cmake".to_owned(),
        "lib/cmake/hugefork/hugeforkConfigVersion.cmake".to_owned(),
        "lib/libhugefork.a".to_owned(),
        "lib/libhugefork.so".to_owned(),
        "lib/libhugefork.so.0".to_owned(),
        format!("lib/libhugefork.so.{}", version()),
        "lib/pkgconfig/hugefork.pc".to_owned(),
        "share/hugefork/hugefork.gdb".to_owned(),
        "share/hugefork/tsan.supp".to_owned(),
        "share/man/man3/hugefork.3".to_owned(),
    ];
    // `man hf_pool_create` shows the page, too.
    let pages = Declarations::of_header().functions.into_keys().map(|name| format!("share/man/man3/{name}.3"));
    assert_eq!(files(&to.join("opt/hugefork")), wanted.into_iter().chain(pages).collect());
    for library in ["lib/libhugefork.so", "lib/libhugefork.a"] {
        let sections = said(Command::new("readelf").arg("-SW").arg(to.join("opt/hugefork").join(library)));
        assert!(!sections.contains(".debug_info"), "{library} is stripped");
    }
    fs::write(to.join("opt/hugefork/lib/other.so"), "").unwrap();
    assert!(install(&["--uninstall", "/opt/hugefork"], &to).status.success());
    assert_eq!(files(&to), BTreeSet::from(["opt/hugefork/lib/other.so".to_owned()]));
}

#[test]
fn an_uninstallation_removes_the_empty_folders_that_were_made() {
    let to = scratch("install-folders").join("a b");
    fs::create_dir_all(to.join("include")).unwrap();
    let installed = |arguments: &[&str], prefix: &Path| {
        let mut script = Command::new(folder().join("install.sh"));
        script.args(arguments).arg(prefix).env("LIBRARIES", built()).env_remove("DESTDIR").env_remove("LIBDIR");
        let output = script.output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
    };
    for prefix in [to.clone(), to.join("opt/hugefork")] {
        // The second installation is an update.
        installed(&[], &prefix);
        installed(&[], &prefix);
        fs::create_dir_all(prefix.join("share/man/man7")).unwrap();
        installed(&["--uninstall"], &prefix);
    }
    let left = said(Command::new("find").arg(".").current_dir(&to));
    let left: BTreeSet<&str> = left.lines().collect();
    let in_opt = [
        "./opt",
        "./opt/hugefork",
        "./opt/hugefork/share",
        "./opt/hugefork/share/man",
        "./opt/hugefork/share/man/man7",
    ];
    let before = [".", "./include", "./share", "./share/man", "./share/man/man7"];
    assert_eq!(left, before.into_iter().chain(in_opt).collect());
}

#[test]
fn a_failed_installation_prints_the_reason() {
    let to = scratch("install-errors");
    for (arguments, why) in
        [(vec!["relative"], "not an absolute path"), (vec!["/a", "/b"], "one PREFIX"), (vec!["--what"], "PREFIX")]
    {
        let output = install(&arguments, &to);
        assert!(!output.status.success() && words(&output).contains(why), "{arguments:?}: {}", words(&output));
    }
    let mut script = Command::new(folder().join("install.sh"));
    let output = script.arg("/opt").env("LIBRARIES", &to).env("DESTDIR", &to).output().unwrap();
    assert!(!output.status.success() && words(&output).contains("has no libhugefork_capi.a"), "{}", words(&output));
    assert_eq!(files(&to), BTreeSet::new());
}

#[test]
fn the_man_page_has_every_line_of_the_header() {
    let mut awk = Command::new("awk");
    awk.arg("-f").arg(folder().join("man.awk")).args(["-v", "version=1.2.3"]).arg(folder().join("include/hugefork.h"));
    let page = said(&mut awk);
    assert!(page.starts_with(".TH HUGEFORK 3 \"\" \"hugefork 1.2.3\""), "{page}");
    let left_out = ["#if", "#endif", "#include", "#define HUGEFORK_H", "extern \"C\"", "/* --"];
    for line in header().lines().filter(|line| !left_out.iter().any(|begin| line.starts_with(begin))) {
        let text = line.trim_matches(['/', '*', ' ']).replace('\\', "\\e").replace('-', "\\-");
        assert!(line == "}" || page.contains(&text), "the page lacks {line}");
    }
}

/// Whether programs without shared libraries can be linked here.
fn has_static_libc() -> bool {
    // If the compiler does not find it, it prints the bare name.
    said(Command::new("cc").arg("-print-file-name=libc.a")).starts_with('/')
}

/// ThreadSanitizer does not know the library's locks and atomics, and would report accesses that they order as races.
#[test]
fn thread_sanitizer_is_quiet_with_the_suppressions() {
    let program = Program::of("tests/c/threads.c", Library::Shared, "tsan").with(&["-fsanitize=thread"]);
    let Some(mut program) = program.build_if_it_can_be() else {
        println!("skipped: the compiler has no ThreadSanitizer");
        return;
    };
    let suppressions = format!("suppressions='{}'", folder().join("tsan.supp").display());
    let output = program.env("TSAN_OPTIONS", suppressions).output().unwrap();
    assert!(output.status.success() && !words(&output).contains("WARNING"), "{}", words(&output));
}

/// A folder with an installation in its final place: the paths in the files are without DESTDIR.
fn installed(name: &str) -> PathBuf {
    let to = scratch(name);
    let mut script = Command::new(folder().join("install.sh"));
    said(script.arg(&to).env("LIBRARIES", built()).env_remove("DESTDIR").env_remove("LIBDIR"));
    to
}

#[test]
fn cmake_finds_the_library_and_both_headers() {
    if Command::new("cmake").arg("--version").output().is_err() {
        println!("skipped: cmake is not installed");
        return;
    }
    // The files may lie elsewhere than where they were installed, as those of an archive do.
    let to = scratch("cmake-moved");
    fs::remove_dir(&to).unwrap();
    fs::rename(installed("cmake"), &to).unwrap();
    let project = |version: &str| {
        let source = folder().join("tests/c/classes.cpp");
        let text = format!(
            "cmake_minimum_required(VERSION 3.10)\nproject(test CXX)\nfind_package(hugefork {version} REQUIRED)\n\
             find_package(Threads REQUIRED)\n\
             foreach(kind hugefork static)\nadd_executable(program-${{kind}} \"{}\")\n\
             target_compile_features(program-${{kind}} PRIVATE cxx_std_17)\n\
             target_link_libraries(program-${{kind}} PRIVATE hugefork::${{kind}} Threads::Threads)\nendforeach()\n",
            source.display()
        );
        fs::write(to.join("CMakeLists.txt"), text).unwrap();
        let mut cmake = Command::new("cmake");
        cmake.current_dir(&to).args(["-S", ".", "-B"]).arg(format!("build-{version}"));
        cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", to.display()));
        cmake
    };
    let newer = project("0.999").output().unwrap();
    assert!(!newer.status.success() && words(&newer).contains("version: 0.1.0"), "{}", words(&newer));
    said(&mut project(&version()));
    said(Command::new("cmake").arg("--build").arg(to.join(format!("build-{}", version()))));
    // CMake has set the path of the library in the program.
    for kind in ["hugefork", "static"] {
        said(&mut Command::new(to.join(format!("build-{}/program-{kind}", version()))));
    }
}

#[test]
fn pkg_config_finds_both_libraries() {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        println!("skipped: pkg-config is not installed");
        return;
    }
    let to = installed("pkg-config");
    let flags = |more: &str| {
        // A shell splits the flags, as in a makefile: folder names may contain spaces.
        let script = r#"eval "set -- $(pkg-config --cflags --libs $0 hugefork)" && printf '%s\n' "$@""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, more]).env("PKG_CONFIG_PATH", to.join("lib/pkgconfig"));
        said(&mut command).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let source = folder().join("tests/c/pins.c");
    let mut all_static = flags("--static");
    all_static.push("-static".to_owned());
    let ways = [("shared", flags("--print-errors")), ("static", flags("--static")), ("all-static", all_static)];
    for (name, flags) in ways {
        if name == "all-static" && !has_static_libc() {
            println!("skipped: {name}: there is no libc.a");
            continue;
        }
        let program = to.join(name);
        let mut compiler = Command::new("cc");
        compiler.arg("-D_GNU_SOURCE").arg(&source).arg("-o").arg(&program);
        let is_static = name != "shared";
        if name == "static" {
            // With both libraries present, the linker uses the shared one.
            fs::remove_file(to.join("lib/libhugefork.so")).unwrap();
        }
        said(compiler.args(flags));
        let needs = said(Command::new("readelf").arg("-d").arg(&program)).contains("libhugefork.so.0");
        assert_ne!(needs, is_static, "{name}");
        said(Command::new(&program).env("LD_LIBRARY_PATH", to.join("lib")));
    }
    let mut asked = Command::new("pkg-config");
    asked.args(["--modversion", "hugefork"]).env("PKG_CONFIG_PATH", to.join("lib/pkgconfig"));
    assert_eq!(said(&mut asked).trim(), version());
}

#[test]
fn the_shared_library_exports_exactly_the_header_functions_with_versions() {
    let library = installed("symbols").join("lib/libhugefork.so");
    let symbols = said(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    // The version itself is a symbol, too.
    let shown: BTreeSet<&str> =
        symbols.lines().map(|line| line.split(' ').next().unwrap()).filter(|name| *name != "HUGEFORK_0.1").collect();
    let declared = Declarations::of_header();
    // Debuggers set a breakpoint there.
    let wanted = declared.functions.keys().map(String::as_str).chain(["hugefork_foreign_fault"]);
    let wanted: Vec<String> = wanted.map(|name| format!("{name}@@HUGEFORK_0.1")).collect();
    assert_eq!(shown, wanted.iter().map(String::as_str).collect());
    let of_cargo = built().join("libhugefork_capi.so");
    for library in [library, of_cargo] {
        let dynamic = said(Command::new("readelf").arg("-d").arg(&library));
        assert!(dynamic.contains("Library soname: [libhugefork.so.0]"), "{dynamic}");
        // The fault handler is in the library.
        assert!(dynamic.contains("NODELETE"), "{dynamic}");
    }
}
