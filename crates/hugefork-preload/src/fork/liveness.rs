//! Forks that may have living descendants, with the descendants' holdings of the program's memory.
//! Each holding is stored beside the fork's token and released with it.

use std::ffi::c_int;

use super::token::{Token, is_gone};
use crate::pool::Held;

/// Maximum number of forks with separate tokens. Further forks share the newest token and end with it.
const MAX_TOKENS: usize = 64;

/// A fork that may have living descendants, or several forks that share a token.
struct Fork {
    segment: c_int,
    held: Held,
}

/// All forks that may have living descendants.
pub(crate) struct Outstanding {
    forks: [Option<Fork>; MAX_TOKENS],
    /// Index of the newest one.
    last: usize,
}

impl Outstanding {
    pub(crate) const fn none() -> Outstanding {
        Outstanding { forks: [const { None }; MAX_TOKENS], last: 0 }
    }

    /// A token that this process has attached: a new one, or the newest one that is alive if no new one is possible.
    /// `None` if there is none alive either.
    pub(crate) fn token(&self) -> Option<Token> {
        let new = if self.is_full() { None } else { Token::new() };
        new.or_else(|| Token::attach(self.last()?))
    }

    /// In the parent: detaches a token, and records it with the descendants' holdings.
    pub(crate) fn hold(&mut self, token: &Token, held: Held) {
        token.let_go();
        self.add(token.segment, held);
    }

    /// Whether no further token can be recorded.
    pub(crate) fn is_full(&self) -> bool {
        self.forks.iter().all(Option::is_some)
    }

    /// The segment of the newest fork that may have living descendants.
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
            // Unreachable: without a free place, `token` returns no new token.
            None => held.never_release(),
        }
    }

    /// Removes the forks without living descendants and passes their holdings to `give_up`. Returns the number of the
    /// other forks.
    pub(crate) fn reap(&mut self, mut give_up: impl FnMut(Held)) -> usize {
        for place in &mut self.forks {
            if let Some(fork) = place.take_if(|fork| is_gone(fork.segment)) {
                give_up(fork.held);
            }
        }
        self.count()
    }

    /// Number of forks that may have living descendants.
    pub(crate) fn count(&self) -> usize {
        self.forks.iter().flatten().count()
    }

    /// In a child: forgets all forks, because their descendants are its siblings.
    pub(crate) fn forget(&mut self) {
        self.forks.iter_mut().filter_map(Option::take).for_each(|fork| fork.held.never_release());
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

    /// Number of living forks, and number of holdings that were released.
    fn reaped(outstanding: &mut Outstanding) -> (usize, usize) {
        let mut given_up = 0;
        (outstanding.reap(|_| given_up += 1), given_up)
    }

    #[test]
    fn a_token_ends_with_its_last_holder() {
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
    fn forks_beyond_the_maximum_share_a_token() {
        let _others_wait = one_at_a_time();
        let mut outstanding = Outstanding::none();
        let mut children: Vec<_> = (0..MAX_TOKENS + 3).map(|_| forked(&mut outstanding)).collect();
        assert_eq!(reaped(&mut outstanding), (MAX_TOKENS, 0));
        // The last four forks share a token.
        children.drain(MAX_TOKENS..).for_each(|child| child.let_go());
        assert_eq!(reaped(&mut outstanding), (MAX_TOKENS, 0));
        children.pop().unwrap().let_go();
        assert_eq!(reaped(&mut outstanding), (MAX_TOKENS - 1, 1));
        children.push(forked(&mut outstanding));
        assert_eq!(reaped(&mut outstanding), (MAX_TOKENS, 0));
        children.remove(0).let_go();
        assert_eq!(reaped(&mut outstanding), (MAX_TOKENS - 1, 1));
        outstanding.forget();
        assert_eq!(reaped(&mut outstanding), (0, 0));
        children.iter().for_each(Token::let_go);
    }
}
