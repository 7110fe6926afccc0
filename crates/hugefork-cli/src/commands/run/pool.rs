//! `hugefork run --pool`: loads the library into a program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use hugefork_preload::{ALL, BIG, LIBRARY, VARIABLE};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use super::program::Program;
use super::refusal;

/// The library, as the build script has built it.
const CONTENTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.so"));

/// The least number of the library's descriptor, beyond those that programs expect to get.
const MIN_DESCRIPTOR: i32 = 900;

/// The original environment of the command. If the command has a file capability, libc removes variables such as
/// `LD_LIBRARY_PATH` from its copy; the kernel still has them.
pub(super) fn environment() -> Vec<OsString> {
    // SAFETY: the call takes numbers. It does not allow a process without the capability to trace this one.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    let variable = |(name, value): (OsString, OsString)| [name, "=".into(), value].into_iter().collect();
    match fs::read("/proc/self/environ") {
        Ok(bytes) => {
            let variables = bytes.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
            variables.map(|variable| OsString::from_vec(variable.to_owned())).collect()
        }
        Err(_) => env::vars_os().map(variable).collect(),
    }
}

/// Adds the library to an environment, and returns the message about the program and its pool.
///
/// # Errors
/// The reason why the program gets no pool.
pub(super) fn add(program: &Program, environment: &mut Vec<OsString>) -> Result<String, String> {
    refusal::of(&program.image, CONTENTS).map_or(Ok(()), Err)?;
    let library = library().map_err(|error| format!("hugefork's library cannot be put into memory: {error}"))?;
    // Undoes an inherited setting that disables transparent huge pages. SAFETY: the call takes numbers. It fails only
    // on kernels that have no such setting.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    load(environment, &library);
    let mut message = "runs with a pool for its mappings of 2 MiB and more; memory of libc's malloc still comes \
                       from the kernel"
        .to_owned();
    if program.image != program.path {
        let image = program.image.display();
        message += &format!(", which {image} runs: only that program gets the pool, not the programs that it starts");
    }
    Ok(message)
}

/// Puts the library into a file in memory, which no other user can replace, and returns its path for the program that
/// this process becomes. The library closes the descriptor when it is loaded.
fn library() -> io::Result<String> {
    let mut file = File::from(memfd_create(LIBRARY, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)?);
    file.write_all(CONTENTS)?;
    let descriptor = fcntl_dupfd_cloexec(&file, MIN_DESCRIPTOR)?;
    fcntl_setfd(&descriptor, FdFlags::empty())?;
    Ok(format!("/proc/{}/fd/{}", std::process::id(), descriptor.into_raw_fd()))
}

/// Sets the variables of the loader and of the library. The library removes both before the program's `main`.
fn load(environment: &mut Vec<OsString>, library: &str) {
    let mut take = |name: &str| {
        let named = |variable: &OsString| Some(variable.as_bytes().strip_prefix(name.as_bytes())?.to_owned());
        let value = environment.iter().find_map(named).map(OsString::from_vec);
        environment.retain(|variable| named(variable).is_none());
        value
    };
    let preloaded = take("LD_PRELOAD=").filter(|preloaded| !preloaded.is_empty());
    let asked = take(&format!("{VARIABLE}=")).filter(|asked| asked == ALL).map_or(BIG, |_| ALL);
    environment.push(format!("{VARIABLE}={asked}").into());
    let libraries = preloaded.iter().map(OsString::as_os_str).chain([OsStr::new(library)]).collect::<Vec<_>>();
    environment.push([OsStr::new("LD_PRELOAD="), &libraries.join(OsStr::new(":"))].into_iter().collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_variables_and_libraries_are_preserved_and_come_first() {
        let loaded = |before: &[&str]| {
            let mut environment = before.iter().map(OsString::from).collect();
            load(&mut environment, "/c/fd/900");
            environment
        };
        assert_eq!(
            loaded(&["A=1", "LD_PRELOAD=/a.so b.so", "B="]),
            ["A=1", "B=", "HUGEFORK_POOL=big", "LD_PRELOAD=/a.so b.so:/c/fd/900"]
        );
        assert_eq!(loaded(&["HUGEFORK_POOL=all"]), ["HUGEFORK_POOL=all", "LD_PRELOAD=/c/fd/900"]);
    }
}
