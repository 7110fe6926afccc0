//! What the library was asked for: read from the environment once, by the constructor, and kept in atomics that every
//! entry point may look at.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::environment::{self, Children, Memory, Mode};

/// What one process was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) mode: Mode,
    pub(crate) min_size: usize,
    pub(crate) children: Children,
    pub(crate) memory: Memory,
    pub(crate) takes_small: bool,
    pub(crate) at_exit: bool,
    pub(crate) signal: Option<i32>,
}

/// Before the constructor, and where nothing was asked for.
const NO_MODE: u8 = 0;

/// Any amount of memory.
const NO_LIMIT: u32 = u32::MAX;

static MODE: AtomicU8 = AtomicU8::new(NO_MODE);
static MIN_SIZE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The place among [`Children::ALL`].
static CHILDREN: AtomicU8 = AtomicU8::new(0);
/// In percent, or [`NO_LIMIT`].
static MEMORY: AtomicU32 = AtomicU32::new(NO_LIMIT);
static TAKES_SMALL: AtomicBool = AtomicBool::new(false);
static AT_EXIT: AtomicBool = AtomicBool::new(false);

impl Config {
    /// Reads variables, of which `value` gives one by its name. None if nothing is asked for.
    ///
    /// # Errors
    /// The variable that nobody can read.
    pub(crate) fn from<'a>(value: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Option<Config>, &'static str> {
        let Some(mode) = value(environment::MODE) else { return Ok(None) };
        let known = |name: &[u8]| Mode::ALL.into_iter().find(|mode| mode.name().as_bytes() == name);
        let mode = known(mode).ok_or(environment::MODE)?;
        let min_size = match value(environment::MIN_SIZE) {
            Some(text) => number(text).ok_or(environment::MIN_SIZE)?,
            None => environment::USUAL_MIN_SIZE,
        };
        let children = match value(environment::CHILDREN) {
            Some(text) => Children::ALL.into_iter().find(|one| one.name().as_bytes() == text),
            None => Some(Children::Alone),
        };
        let children = children.ok_or(environment::CHILDREN)?;
        let memory = match value(environment::MEMORY) {
            Some(text) => number(text).ok_or(environment::MEMORY)?,
            None => Memory::default(),
        };
        let takes_small = match value(environment::RUN_SMALL) {
            Some(text) if text == environment::IN_POOL.as_bytes() => true,
            Some(_) => return Err(environment::RUN_SMALL),
            None => false,
        };
        let at_exit = match value(environment::STATS) {
            Some(text) if text == environment::AT_EXIT.as_bytes() => true,
            Some(_) => return Err(environment::STATS),
            None => false,
        };
        let signal = match value(environment::STATS_SIGNAL) {
            Some(text) => Some(number(text).ok_or(environment::STATS_SIGNAL)?),
            None => None,
        };
        Ok(Some(Config { mode, min_size, children, memory, takes_small, at_exit, signal }))
    }

    /// Reads the environment of this process.
    ///
    /// # Errors
    /// As [`Config::from`].
    pub(crate) fn of_this_process() -> Result<Option<Config>, &'static str> {
        Config::from(variable)
    }

    /// From now on, this is what is asked for.
    pub(crate) fn set(&self) {
        MIN_SIZE.store(self.min_size, Ordering::Relaxed);
        let children = Children::ALL.iter().position(|one| *one == self.children).unwrap_or(0);
        CHILDREN.store(children as u8, Ordering::Relaxed);
        MEMORY.store(self.memory.percent().unwrap_or(NO_LIMIT), Ordering::Relaxed);
        TAKES_SMALL.store(self.takes_small, Ordering::Relaxed);
        AT_EXIT.store(self.at_exit, Ordering::Relaxed);
        // Last: who sees the mode sees the rest.
        MODE.store(code(self.mode), Ordering::Release);
    }
}

fn code(mode: Mode) -> u8 {
    match mode {
        Mode::Collapse => 1,
        Mode::Pool => 2,
    }
}

/// What is done in this process; none if nothing is.
pub(crate) fn mode() -> Option<Mode> {
    let set = MODE.load(Ordering::Acquire);
    Mode::ALL.into_iter().find(|mode| code(*mode) == set)
}

/// Bytes from which on a mapping is looked after.
pub(crate) fn min_size() -> usize {
    MIN_SIZE.load(Ordering::Relaxed)
}

/// What children get.
pub(crate) fn children() -> Children {
    Children::ALL[usize::from(CHILDREN.load(Ordering::Relaxed))]
}

/// Whether children have threads of the library's, too.
pub(crate) fn helps_children() -> bool {
    children() != Children::Alone
}

/// What children's lives may have the program take, in percent of what they do with plain pages, if that is limited.
pub(crate) fn memory() -> Option<u32> {
    Some(MEMORY.load(Ordering::Relaxed)).filter(|percent| *percent != NO_LIMIT)
}

/// Whether mode `pool` takes small mappings too, from the first on: for test suites.
pub(crate) fn takes_small() -> bool {
    TAKES_SMALL.load(Ordering::Relaxed)
}

/// Whether a line is wanted at the end.
pub(crate) fn at_exit() -> bool {
    AT_EXIT.load(Ordering::Relaxed)
}

unsafe extern "C" {
    /// As `getenv`, but for processes with more rights than their caller: those find nothing.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// A variable of this process's environment. Called before the program can change it: by the constructor, or at the
/// first `malloc`.
pub(crate) fn variable(name: &str) -> Option<&'static [u8]> {
    // The names are short, and the stack holds them.
    let mut bytes = [0; 32];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    let name = CStr::from_bytes_until_nul(&bytes).ok()?;
    // SAFETY: a string that ends, and nobody changes the environment before `main`.
    // A process with more rights than its caller takes nothing from him.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: the environment of the start lies in the process's first stack, and stays there.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Whether this is the program that alone is meant, if one is.
pub(crate) fn is_meant() -> bool {
    let Some(only) = variable(environment::ONLY) else { return true };
    let mut bytes = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: a name that ends, and a buffer of the length that is named.
    let len = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    let path = &bytes[..usize::try_from(len).unwrap_or(0)];
    path.rsplit(|byte| *byte == b'/').next() == Some(only)
}

/// What is written as a number is.
fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Malloc, Settings};

    fn read(settings: &Settings) -> Config {
        let variables = settings.variables();
        let value = |name: &str| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some(value.as_encoded_bytes())
        };
        Config::from(value).unwrap().unwrap()
    }

    #[test]
    fn what_the_command_says_the_library_reads() {
        let plain = Settings {
            mode: Mode::Collapse,
            min_size: 1 << 20,
            malloc: Malloc::Auto,
            children: Children::Alone,
            memory: Memory::default(),
            only: None,
            at_exit: false,
            signal: None,
        };
        let (children, memory) = (Children::Alone, Memory::default());
        let (takes_small, at_exit, signal) = (false, false, None);
        let wanted = Config { mode: Mode::Collapse, min_size: 1 << 20, children, memory, takes_small, at_exit, signal };
        assert_eq!(read(&plain), wanted);
        let children = Children::Grow;
        for memory in ["any", "1", "2.5"].map(|text| text.parse().unwrap()) {
            let all = Settings { min_size: 4096, children, memory, at_exit: true, signal: Some(12), ..plain.clone() };
            let wanted = Config { min_size: 4096, children, memory, at_exit: true, signal: Some(12), ..wanted };
            assert_eq!(read(&all), wanted);
        }
    }

    #[test]
    fn small_mappings_are_asked_for_by_a_variable_alone() {
        let asked = |text: Option<&'static [u8]>| {
            Config::from(move |name| match name {
                environment::MODE => Some(b"pool"),
                environment::RUN_SMALL => text,
                _ => None,
            })
        };
        assert!(!asked(None).unwrap().unwrap().takes_small);
        assert!(asked(Some(b"pool")).unwrap().unwrap().takes_small);
    }

    #[test]
    fn what_nobody_can_read_is_named_and_nothing_asked_is_nothing() {
        assert_eq!(Config::from(|_| None), Ok(None));
        let with = |name: &'static str, text: &'static [u8]| {
            Config::from(move |asked| match asked {
                _ if asked == name => Some(text),
                environment::MODE => Some(b"collapse"),
                _ => None,
            })
        };
        for (name, text) in [
            (environment::MODE, &b"fold"[..]),
            (environment::MIN_SIZE, b"-1"),
            (environment::MIN_SIZE, b""),
            (environment::CHILDREN, b"threads"),
            (environment::MEMORY, b"0.99"),
            (environment::MEMORY, b"much"),
            (environment::RUN_SMALL, b"yes"),
            (environment::STATS, b"yes"),
            (environment::STATS_SIGNAL, b"USR2"),
        ] {
            assert_eq!(with(name, text), Err(name));
        }
    }

    #[test]
    fn names_fit_the_stack() {
        for name in [
            environment::MODE,
            environment::MIN_SIZE,
            environment::STATS,
            environment::STATS_SIGNAL,
            environment::MALLOC,
            environment::CHILDREN,
            environment::MEMORY,
            environment::RUN_SMALL,
        ] {
            assert!(name.len() < 32, "{name}");
        }
    }
}
