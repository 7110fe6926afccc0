//! Shared by the tests: the libraries that cargo has built, and the C compiler.

#![allow(dead_code)] // Each test binary uses its part of it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exit status of a C program that cannot do its work on this machine.
const SKIPPED: i32 = 77;

pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn header() -> String {
    fs::read_to_string(folder().join("include/hugefork.h")).unwrap()
}

/// The folder of the libraries that cargo has built, next to the test.
pub(crate) fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A folder for files of a test. Tests run concurrently, so each has a folder of its own.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Library {
    Shared,
    Static,
}

/// A C or C++ program to be built and run.
pub(crate) struct Program {
    compiler: Command,
    folder: PathBuf,
}

impl Program {
    /// A program with one source file of this crate.
    pub(crate) fn of(source: &str, library: Library, name: &str) -> Program {
        let folder = scratch(name);
        let is_cpp = source.ends_with(".cpp");
        let mut compiler = Command::new(if is_cpp { "c++" } else { "cc" });
        compiler.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-D_GNU_SOURCE"]);
        compiler.arg(if is_cpp { "-std=c++17" } else { "-std=c11" });
        compiler.arg("-I").arg(self::folder().join("include"));
        compiler.arg("-o").arg(folder.join("program")).arg(self::folder().join(source));
        match library {
            Library::Static => {
                // Without this, linking 80 MB of debug information takes three times as long as everything else.
                compiler.arg(built().join("libhugefork_capi.a")).args(["-ldl", "-lm", "-Wl,--strip-debug"]);
            }
            Library::Shared => {
                // The names of an installed library: one for the linker, one for programs.
                for link in ["libhugefork.so", "libhugefork.so.0"] {
                    symlink(built().join("libhugefork_capi.so"), folder.join(link)).unwrap();
                }
                compiler.arg("-L").arg(&folder).arg("-lhugefork").arg(format!("-Wl,-rpath,{}", folder.display()));
            }
        }
        Program { compiler, folder }
    }

    pub(crate) fn with(mut self, arguments: &[&str]) -> Program {
        self.compiler.args(arguments);
        self
    }

    /// Builds it. The command runs it.
    pub(crate) fn build(mut self) -> Command {
        let output = self.compiler.output().expect("a C compiler is installed");
        assert!(output.status.success(), "{:?}\n{}", self.compiler, words(&output));
        self.command()
    }

    /// Builds it; `None` if the compiler lacks something.
    pub(crate) fn build_if_it_can_be(mut self) -> Option<Command> {
        self.compiler.output().expect("a C compiler is installed").status.success().then(|| self.command())
    }

    fn command(&self) -> Command {
        let mut program = Command::new(self.folder.join("program"));
        program.current_dir(&self.folder);
        program
    }
}

/// Builds and runs a program, which must succeed.
#[track_caller]
pub(crate) fn runs(program: Program) {
    ends_well(&program.build().output().unwrap());
}

#[track_caller]
pub(crate) fn ends_well(output: &Output) {
    match output.status.code() {
        Some(0) => {}
        Some(SKIPPED) => println!("skipped: {}", words(output)),
        _ => panic!("{}\n{}", output.status, words(output)),
    }
}

pub(crate) fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}
