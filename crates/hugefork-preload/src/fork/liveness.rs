//! The forks of which something may still live, and what their descendants hold of the program's memory: it lies beside
//! each fork's token, and both go together.

use std::ffi::c_int;

use super::token::{Token, is_gone};
use crate::pool::Held;

/// So many forks are told apart. Those that come on top share the token of the last one, and are over with it.
const MOST: usize = 64;

/// A fork of which something may still live, or several that share a token.
struct Fork {
    segment: c_int,
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

    /// A token that this process has attached: a new one, or that of the last fork of which something lives, if there
    /// can be no other. None if nothing lives either.
    pub(crate) fn token(&self) -> Option<Token> {
        let new = if self.is_full() { None } else { Token::new() };
        new.or_else(|| Token::attach(self.last()?))
    }

    /// In the parent: lets go of a token, and notes it, with what the descendants hold.
    pub(crate) fn hold(&mut self, token: &Token, held: Held) {
        token.let_go();
        self.add(token.segment, held);
    }

    /// Whether there is no place for one more.
    pub(crate) fn is_full(&self) -> bool {
        self.forks.iter().all(Option::is_some)
    }

    /// The segment of the last fork of which something may live.
    fn last(&self) -> Option<c_int> {
        let (earlier, later) = self.forks.split_at(self.last + 1);
        earlier.iter().rev().chain(later).flatten().map(|fork| fork.segment).next()
    }

    fn add(&mut self, segment: c_int, held: Held) {
        if let Some(shared) = self.forks.iter_mut().flatten().find(|fork| fork.segment == segment) {
            return shared.held.join(held);
        }
        match self.forks.iter().position(Option::is_none) {
            Some(place) => {
                self.forks[place] = Some(Fork { segment, held });
                self.last = place;
            }
            // It cannot be: where there is no place, there is no new token.
            None => held.keep_for_ever(),
        }
    }

    /// Takes out those of which nobody lives any more, and passes on what was held for them. Gives the number of the
    /// others.
    pub(crate) fn reap(&mut self, mut give_up: impl FnMut(Held)) -> usize {
        for place in &mut self.forks {
            if let Some(fork) = place.take_if(|fork| is_gone(fork.segment)) {
                give_up(fork.held);
            }
        }
        self.count()
    }

    /// How many forks are known of which something may live.
    pub(crate) fn count(&self) -> usize {
        self.forks.iter().flatten().count()
    }

    /// In a child: forgets all, which are its siblings.
    pub(crate) fn forget(&mut self) {
        self.forks.iter_mut().filter_map(Option::take).for_each(|fork| fork.held.keep_for_ever());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::one_at_a_time;

    fn forked(outstanding: &mut Outstanding) -> Token {
        let token = outstanding.token().unwrap();
        let child = Token::attach(token.segment).unwrap();
        outstanding.hold(&token, Held::nothing());
        child
    }

    /// How many live, and of how many that was given up which was held for them.
    fn reaped(outstanding: &mut Outstanding) -> (usize, usize) {
        let mut given_up = 0;
        (outstanding.reap(|_| given_up += 1), given_up)
    }

    #[test]
    fn a_token_is_over_when_nobody_has_it() {
        let _others_wait = one_at_a_time();
        let mut outstanding = Outstanding::none();
        assert!(crate::fork::token::can_be_made());
        assert_eq!(reaped(&mut outstanding), (0, 0));
        let child = forked(&mut outstanding);
        assert_eq!(reaped(&mut outstanding), (1, 0));
        assert_eq!(reaped(&mut outstanding), (1, 0));
        child.let_go();
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
        children.drain(MOST..).for_each(|child| child.let_go());
        assert_eq!(reaped(&mut outstanding), (MOST, 0));
        children.pop().unwrap().let_go();
        assert_eq!(reaped(&mut outstanding), (MOST - 1, 1));
        children.push(forked(&mut outstanding));
        assert_eq!(reaped(&mut outstanding), (MOST, 0));
        children.remove(0).let_go();
        assert_eq!(reaped(&mut outstanding), (MOST - 1, 1));
        outstanding.forget();
        assert_eq!(reaped(&mut outstanding), (0, 0));
        children.iter().for_each(Token::let_go);
    }
}
