//! Compares the state machine with the table in `docs/safety/states.md`, for all states, events and facts.
//!
//! `HUGEFORK_GOLDEN=write` writes the table anew; the diff shows the change of the engine.

use std::fmt::Debug;
use std::fs;

use super::*;
use crate::sys::{Access, Shows};
use crate::table::Entry;
use crate::units::BlockId;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/safety/states.md");
const BEGIN: &str = "<!-- transitions: begin -->\n";
const END: &str = "<!-- transitions: end -->";

/// All states.
const STATES: [State; 8] = [
    State::Zero,
    State::Private,
    State::Shared,
    State::Lazy,
    State::Split,
    State::CowMapped(Access::ReadWrite),
    State::CowMapped(Access::Read),
    State::Revoked,
];

/// All events, in the order of the enum.
const EVENTS: [Event; 19] = [
    Event::Write,
    Event::Read,
    Event::Snapshot,
    Event::Fork,
    Event::Discard,
    Event::LazyFree,
    Event::LazyFreePart,
    Event::Cancel,
    Event::Reclaim,
    Event::Revoke,
    Event::Pin,
    Event::Unpin,
    Event::Drop,
    Event::PagesWritable,
    Event::PagesLazy,
    Event::PagesDropped,
    Event::ProtectFailed,
    Event::WriteProtect,
    Event::Reset,
];

/// The words for each fact: first when it holds, then when it does not.
const NAMES: [(&str, &str); 7] = [
    ("held alone", "held by others too"),
    ("promised", "not promised"),
    ("pinned", "not pinned"),
    ("divisible", "indivisible"),
    ("the parent's block", "its own block"),
    ("by page", "by block"),
    ("the snapshot's block", "another block"),
];

/// The conditions from `fact` on that decide the outcome, each with its outcome. The decision tree is as flat as
/// possible.
fn leaves(event: Event, state: State, fact: usize, bits: usize) -> Vec<(Vec<&'static str>, (State, Work))> {
    let outcome = |rest: usize| step(event, state, Facts::nth(bits | rest << fact));
    let rest = NAMES.len() - fact;
    if (0..1 << rest).all(|others| outcome(others) == outcome(0)) {
        return vec![(Vec::new(), outcome(0))];
    }
    let no_matter = (0..1 << rest).all(|others| outcome(others) == outcome(others ^ 1));
    if no_matter {
        return leaves(event, state, fact + 1, bits);
    }
    let (yes, no) = NAMES[fact];
    let with = |name, bits| {
        let below = leaves(event, state, fact + 1, bits).into_iter();
        below.map(move |(conditions, outcome)| ([vec![name], conditions].concat(), outcome))
    };
    with(yes, bits | 1 << fact).chain(with(no, bits)).collect()
}

/// Splits a `Debug` name into words: `GiveZeroed` becomes `give zeroed`, `LazyFree(Skip(Shared))` becomes `skip:
/// shared`.
fn words(name: &impl Debug) -> String {
    let text = format!("{name:?}");
    let inner = text.trim_end_matches(')').split('(').collect::<Vec<_>>();
    let inner = if inner.len() > 1 { &inner[1..] } else { &inner[..] };
    let spaced = |word: &&str| {
        let mut out = String::new();
        for letter in word.chars() {
            if letter.is_uppercase() && !out.is_empty() {
                out.push(' ');
            }
            out.extend(letter.to_lowercase());
        }
        out
    };
    inner.iter().map(spaced).collect::<Vec<_>>().join(": ")
}

/// The memory that an entry in this state shows.
fn shown(state: State) -> &'static str {
    let entry = Entry::Private(BlockId(0)).in_state(state);
    match entry.shows() {
        Some(Shows::Zeros) => "zeros",
        Some(Shows::Hidden) => "nothing",
        Some(Shows::Memory { access: Access::Read, .. }) => "block, read-only",
        Some(Shows::Memory { access: Access::ReadWrite, .. }) => "block, writable",
        Some(Shows::CowMapping { access: Access::Read, .. }) => "private pages over the block, read-only",
        Some(Shows::CowMapping { access: Access::ReadWrite, .. }) => "private pages over the block, writable",
        None => "page by page",
    }
}

fn table() -> String {
    let mut text = "| event | entry | if | next | shows | work |\n|---|---|---|---|---|---|\n".to_owned();
    for event in EVENTS {
        // States with the same outcome share a row.
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        for state in STATES {
            for (conditions, (next, work)) in leaves(event, state, 0, 0) {
                let next = if next == state {
                    ("stays".to_owned(), "as before")
                } else {
                    (format!("`{next:?}`"), shown(next))
                };
                let rest = format!("{} | {} | {} | {}", conditions.join(", "), next.0, next.1, words(&work));
                let name = format!("`{state:?}`");
                match rows.iter_mut().find(|(other, _)| *other == rest) {
                    Some((_, entries)) => entries.push(name),
                    None => rows.push((rest, vec![name])),
                }
            }
        }
        for (rest, entries) in rows {
            text += &format!("| {} | {} | {rest} |\n", words(&event), entries.join(", "));
        }
    }
    text.replace("|  |", "| |")
}

#[test]
fn the_document_has_the_table_of_the_engine() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the beginning of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    let now = table();
    if std::env::var_os("HUGEFORK_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(DOCUMENT, format!("{before}{BEGIN}{now}{END}{after}")).unwrap();
    } else {
        assert!(written == now, "docs/safety/states.md has another table; the engine's is:\n{now}");
    }
}

#[test]
fn what_is_stored_is_checked_against_the_table() {
    assert!(allows(Event::Write, State::Zero, State::Private));
    assert!(allows(Event::Snapshot, State::Private, State::Shared));
    assert!(allows(Event::LazyFree, State::Split, State::Lazy), "all of its pages are");
    for (event, from, to) in [
        (Event::Write, State::Revoked, State::Private),
        (Event::Write, State::Private, State::Zero),
        (Event::Reclaim, State::Private, State::Zero),
        (Event::Revoke, State::Private, State::Revoked),
        (Event::Cancel, State::Shared, State::Lazy),
    ] {
        assert!(!allows(event, from, to), "{event:?}: {from:?} to {to:?}");
    }
    for (at, event) in EVENTS.into_iter().enumerate() {
        assert_eq!(event as usize, at);
    }
}

/// Outcomes that no event may have, whatever the facts.
#[test]
fn no_event_shows_what_is_not_there() {
    for event in EVENTS {
        for facts in (0..Facts::COUNT).map(Facts::nth) {
            let (next, _) = step(event, State::Revoked, facts);
            let expected = if event == Event::Discard {
                State::Zero
            } else if event == Event::Reset {
                State::Shared
            } else {
                State::Revoked
            };
            assert_eq!(next, expected, "{event:?} of what was taken away");
            for state in STATES {
                let (next, _) = step(event, state, facts);
                let has_block = |state| !matches!(state, State::Zero | State::Revoked);
                // A reset gives the entry the snapshot's block.
                let gives_one = event == Event::Write && state == State::Zero || event == Event::Reset;
                assert!(!has_block(next) || has_block(state) || gives_one, "{event:?} of {state:?} finds a block");
                if state == State::Private && facts.pinned == Pinned::Yes && event != Event::ProtectFailed {
                    assert_eq!(next, State::Private, "{event:?} moves a pinned block");
                }
            }
        }
    }
}
