//! Who of the program's descendants still lives, without knowing their numbers and without `SIGCHLD`, which are the
//! program's.
//!
//! Each fork makes a token, a file of memory that the child maps shared. `fcntl(F_ADD_SEALS, F_SEAL_WRITE)` fails for
//! as long as anybody maps it: the child, and all that the child has forked since, however deep. It succeeds once all
//! of them have ended, were killed, or have become another program.
//!
//! ```text
//! prepare                 Token::next        mapped here
//! fork(2)                                    mapped here and in the child
//! parent  outstanding ◀── Token::hold        mapped in the child            child  Token::inherit, and keeps it mapped
//! worker  reap                               sealed once nobody maps it
//! ```
//! What the descendants of a fork hold of the program's memory lies beside its token: both go together. Without a token
//! nobody could say when they do, so in mode `pool` a file is kept ready for a fork that gets no other.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::descriptors::Kept;
use crate::fork::spare;
use crate::modes::Held;
use crate::{BASE_PAGE, Mode, config};

/// So many forks are told apart. Those that come on top share the token of the one before, and are over with it.
const MOST: usize = 64;

/// What a fork's descendants hold.
pub(crate) struct Token {
    file: Kept,
    /// An address, so that the token can be kept where all threads reach it.
    mapped: usize,
}

impl Token {
    /// A token that this process maps: a new one, or that of the last fork of which something still lives, if there
    /// can be no other, or else of the file that is kept ready.
    ///
    /// # Errors
    /// The process has no descriptor or no mapping left, and nobody lives.
    pub(crate) fn next(outstanding: &Outstanding) -> Result<Token, Errno> {
        let made = if outstanding.is_full() { Err(Errno::MFILE) } else { spare::new_file().and_then(Token::of_new) };
        made.or_else(|errno| match outstanding.last() {
            Some(file) => Token::of(file),
            None => spare::take().map_or(Err(errno), Token::of_new),
        })
    }

    fn of_new(file: Kept) -> Result<Token, Errno> {
        Token::of(file).inspect_err(|_| file.close())
    }

    fn of(file: Kept) -> Result<Token, Errno> {
        let number = file.get().ok_or(Errno::BADF)?;
        // Nobody looks at it, so it needs no memory.
        // SAFETY: a new mapping where the kernel likes.
        let mapped =
            unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::SHARED, number.as_fd(), 0) };
        Ok(Token { file, mapped: mapped? as usize })
    }

    /// In the parent: lets go of it, and notes it, with what the descendants hold.
    pub(crate) fn hold(self, outstanding: &mut Outstanding, held: Held) {
        // SAFETY: mapped by this token, and nobody looks at it.
        let _ = unsafe { munmap(self.mapped as *mut c_void, BASE_PAGE) };
        outstanding.add(self.file, held);
    }

    /// In the child: keeps it mapped until the process ends.
    pub(crate) fn inherit(self) {
        self.file.close();
    }
}

/// A fork of which something may still live, or several that share a token.
struct Fork {
    token: Kept,
    held: Held,
}

/// The forks of which something may still live.
pub(crate) struct Outstanding {
    forks: [Option<Fork>; MOST],
    /// The place of the last.
    last: usize,
}

impl Outstanding {
    pub(crate) const fn none() -> Outstanding {
        Outstanding { forks: [const { None }; MOST], last: 0 }
    }

    /// Whether there is no place for one more.
    pub(crate) fn is_full(&self) -> bool {
        self.forks.iter().all(Option::is_some)
    }

    /// The token of the last fork of which something may live.
    fn last(&self) -> Option<Kept> {
        let (earlier, later) = self.forks.split_at(self.last + 1);
        earlier.iter().rev().chain(later).flatten().map(|fork| fork.token).next()
    }

    fn add(&mut self, token: Kept, held: Held) {
        if let Some(shared) = self.forks.iter_mut().flatten().find(|fork| fork.token == token) {
            return shared.held.join(held);
        }
        match self.forks.iter().position(Option::is_none) {
            Some(place) => {
                self.forks[place] = Some(Fork { token, held });
                self.last = place;
            }
            // It cannot be: where there is no place, there is no new token.
            None => held.keep_for_ever(),
        }
    }

    /// Takes out those of which nobody lives any more, and passes on what was held for them. Gives the number of the
    /// others.
    pub(crate) fn reap(&mut self, mut give_up: impl FnMut(Held)) -> usize {
        // What is shared with somebody must not change, so there it is not taken for granted that he is gone.
        let unknown = config::mode() != Some(Mode::Pool);
        for place in &mut self.forks {
            if let Some(fork) = place.take_if(|fork| fork.token.is_unmapped(unknown)) {
                fork.token.close();
                spare::find();
                give_up(fork.held);
            }
        }
        self.forks.iter().flatten().count()
    }

    /// Whether no fork is known of which something may live.
    pub(crate) fn is_empty(&self) -> bool {
        self.forks.iter().all(Option::is_none)
    }

    /// In a child: forgets all, which are its siblings.
    pub(crate) fn forget(&mut self) {
        for fork in self.forks.iter_mut().filter_map(Option::take) {
            fork.token.close();
            fork.held.keep_for_ever();
        }
        spare::in_child();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::one_at_a_time;

    /// A token as a child maps it, until this is dropped.
    struct Child(*mut c_void);

    impl Child {
        fn of(token: &Token) -> Child {
            let number = token.file.get().unwrap();
            // SAFETY: a new mapping where the kernel likes.
            let mapped = unsafe { mmap(ptr::null_mut(), BASE_PAGE, ProtFlags::empty(), MapFlags::SHARED, number, 0) };
            Child(mapped.unwrap())
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: mapped by this.
            unsafe { munmap(self.0, BASE_PAGE) }.unwrap();
        }
    }

    fn forked(outstanding: &mut Outstanding) -> Child {
        let token = Token::next(outstanding).unwrap();
        let child = Child::of(&token);
        token.hold(outstanding, Held::nothing());
        child
    }

    /// How many live, and of how many that was given up which was held for them.
    fn reaped(outstanding: &mut Outstanding) -> (usize, usize) {
        let mut given_up = 0;
        (outstanding.reap(|_| given_up += 1), given_up)
    }

    #[test]
    fn a_token_is_over_when_nobody_maps_it() {
        let _others_wait = one_at_a_time();
        let mut outstanding = Outstanding::none();
        assert_eq!(reaped(&mut outstanding), (0, 0));
        let child = forked(&mut outstanding);
        assert_eq!(reaped(&mut outstanding), (1, 0));
        assert_eq!(reaped(&mut outstanding), (1, 0));
        drop(child);
        assert_eq!(reaped(&mut outstanding), (0, 1));
        assert_eq!(reaped(&mut outstanding), (0, 0));
    }

    #[test]
    fn those_beyond_the_most_share_a_token_and_are_over_together() {
        let _others_wait = one_at_a_time();
        let mut outstanding = Outstanding::none();
        let mut children: Vec<_> = (0..MOST + 3).map(|_| forked(&mut outstanding)).collect();
        assert_eq!(reaped(&mut outstanding), (MOST, 0));
        // The last four share one.
        children.truncate(MOST);
        assert_eq!(reaped(&mut outstanding), (MOST, 0));
        children.pop();
        assert_eq!(reaped(&mut outstanding), (MOST - 1, 1));
        children.push(forked(&mut outstanding));
        assert_eq!(reaped(&mut outstanding), (MOST, 0));
        children.remove(0);
        assert_eq!(reaped(&mut outstanding), (MOST - 1, 1));
        outstanding.forget();
        assert_eq!(reaped(&mut outstanding), (0, 0));
    }
}
