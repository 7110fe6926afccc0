//! Who of the program's descendants still lives, without knowing their numbers and without `SIGCHLD`, which are the
//! program's.
//!
//! Each fork makes a token, a file of memory that the child maps shared. `fcntl(F_ADD_SEALS, F_SEAL_WRITE)` fails for
//! as long as anybody maps it: the child, and all that the child has forked since, however deep. It succeeds once all
//! of them have ended, were killed, or have become another program.
//!
//! ```text
//! prepare                 Token::make        mapped here
//! fork(2)                                    mapped here and in the child
//! parent  outstanding ◀── Token::hold        mapped in the child            child  Token::inherit, and keeps it mapped
//! worker  reap                               sealed once nobody maps it
//! ```

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::descriptor::Kept;
use crate::{BASE_PAGE, Mode, config};

/// Forks of which something still lives. More are not told apart: they have no place.
pub(crate) const MOST: usize = 64;

/// What a fork's descendants hold.
pub(crate) struct Token {
    file: Kept,
    /// An address, so that the token can be kept where all threads reach it.
    mapped: usize,
}

impl Token {
    /// A token that this process maps.
    ///
    /// # Errors
    /// The process has no descriptor or no mapping left.
    pub(crate) fn make() -> Result<Token, Errno> {
        let file = Kept::memory(c"hugefork-token")?;
        let number = file.get().ok_or(Errno::BADF)?;
        // Nobody looks at it, so it needs no memory.
        // SAFETY: a new mapping where the kernel likes.
        let mapped =
            unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::SHARED, number.as_fd(), 0) };
        match mapped {
            Ok(mapped) => Ok(Token { file, mapped: mapped as usize }),
            Err(errno) => {
                file.close();
                Err(errno)
            }
        }
    }

    /// In the parent: lets go of it, and notes it. Gives its place; none if there is none left.
    pub(crate) fn hold(self, outstanding: &mut Outstanding) -> Option<usize> {
        // SAFETY: mapped by this token, and nobody looks at it.
        let _ = unsafe { munmap(self.mapped as *mut c_void, BASE_PAGE) };
        outstanding.add(self.file)
    }

    /// In the child: keeps it mapped until the process ends.
    pub(crate) fn inherit(self) {
        self.file.close();
    }
}

/// The tokens of forks of which something may still live.
pub(crate) struct Outstanding {
    files: [Option<Kept>; MOST],
    /// The places whose descendants are gone, and of which the memory that they held is not given up yet: a bit for
    /// each.
    gone: u64,
}

impl Outstanding {
    pub(crate) const fn none() -> Outstanding {
        Outstanding { files: [None; MOST], gone: 0 }
    }

    fn add(&mut self, file: Kept) -> Option<usize> {
        self.reap();
        // A place is not used again before what those had who are gone is given up: whoever gives it up knows it by
        // its place.
        let free = (0..MOST).find(|&place| self.files[place].is_none() && self.gone >> place & 1 == 0);
        match free {
            Some(place) => self.files[place] = Some(file),
            None => file.close(),
        }
        free
    }

    /// The places whose descendants are gone, a bit for each. They stay taken until [`Outstanding::given_up`].
    pub(crate) fn gone(&self) -> u64 {
        self.gone
    }

    /// What was held at these places is given up.
    pub(crate) fn given_up(&mut self, places: u64) {
        self.gone &= !places;
    }

    /// Forgets those of which nobody lives any more. Gives the number of the others.
    pub(crate) fn reap(&mut self) -> usize {
        // What is shared with somebody must not change, so there it is not taken for granted that he is gone.
        let unknown = config::mode() != Some(Mode::Pool);
        for (nth, place) in self.files.iter_mut().enumerate() {
            if place.is_some_and(|file| file.is_unmapped(unknown))
                && let Some(file) = place.take()
            {
                file.close();
                self.gone |= 1 << nth;
            }
        }
        self.files.iter().flatten().count()
    }

    /// Whether no fork is known of which something may live.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().all(Option::is_none)
    }

    /// In a child: forgets all, which are its siblings.
    pub(crate) fn forget(&mut self) {
        for file in self.files.iter_mut().filter_map(Option::take) {
            file.close();
        }
        self.gone = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_over_when_nobody_maps_it() {
        let mut outstanding = Outstanding::none();
        assert_eq!(outstanding.reap(), 0);
        let token = Token::make().unwrap();
        // As a child maps it.
        let number = token.file.get().unwrap();
        // SAFETY: a new mapping where the kernel likes.
        let held = unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::SHARED, number, 0) };
        token.hold(&mut outstanding);
        assert_eq!(outstanding.reap(), 1);
        assert_eq!(outstanding.reap(), 1);
        // SAFETY: mapped above.
        unsafe { munmap(held.unwrap(), BASE_PAGE) }.unwrap();
        assert_eq!(outstanding.reap(), 0);
    }

    #[test]
    fn a_place_is_not_used_again_before_what_was_held_there_is_given_up() {
        let mut outstanding = Outstanding::none();
        let first = Token::make().unwrap().hold(&mut outstanding).unwrap();
        assert_eq!(outstanding.reap(), 0);
        let gone = outstanding.gone();
        assert_eq!(gone, 1 << first);
        // A fork comes between what the worker has learned and what it does about it.
        let second = Token::make().unwrap().hold(&mut outstanding).unwrap();
        assert_ne!(second, first);
        outstanding.given_up(gone);
        assert_eq!(outstanding.reap(), 0);
        assert_eq!(outstanding.gone(), 1 << second);
        assert_eq!(Token::make().unwrap().hold(&mut outstanding), Some(first));
        outstanding.forget();
    }

    #[test]
    fn more_than_can_be_told_apart_are_not_kept() {
        let mut outstanding = Outstanding::none();
        let mut held = Vec::new();
        for _ in 0..MOST + 3 {
            let token = Token::make().unwrap();
            let number = token.file.get().unwrap();
            // SAFETY: a new mapping where the kernel likes.
            let mapped = unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::SHARED, number, 0) };
            held.push(mapped.unwrap());
            token.hold(&mut outstanding);
        }
        assert_eq!(outstanding.reap(), MOST);
        outstanding.forget();
        assert_eq!(outstanding.reap(), 0);
        // SAFETY: mapped above.
        held.into_iter().for_each(|mapped| unsafe { munmap(mapped, BASE_PAGE) }.unwrap());
    }
}
