//! A SAT solver that takes a snapshot at each choice, and resets its state at each dead end. The state consists of
//! std's maps and sets in a heap, and the solver has no code to undo what it does. Beside it run the same solver that
//! clones its state for each choice, and the same solver with a log to undo changes.
//! `cargo run --release -p hugefork --example backtrack_by_reset`
//!
//! ```text
//!    378 clauses,  4 MiB, 171 choices, 149 dead ends, a solution: resets 54.9 ms, clones 9.4 ms, a log 9.8 ms
//!    252 clauses,  4 MiB, 246 choices, 247 dead ends, none: resets 87.7 ms, clones 11.3 ms, a log 14.6 ms
//!   1752 clauses,  4 MiB, 246 choices, 247 dead ends, none: resets 81.1 ms, clones 196.3 ms, a log 24.2 ms
//!   6252 clauses,  4 MiB, 246 choices, 247 dead ends, none: resets 66.4 ms, clones 558.8 ms, a log 21.4 ms
//!  24252 clauses,  8 MiB, 246 choices, 247 dead ends, none: resets 69.0 ms, clones 1908.3 ms, a log 23.1 ms
//! ```
//! A choice costs some 0.3 ms here with resets, whatever the size of the state. So resets are ahead of clones from some
//! thousand clauses on, but never ahead of a log, which costs what the solver changes. They are for a program that has
//! no log and would clone. Few choices may be open at a time, since each holds a snapshot: hundreds of them cost more
//! than clones.

use std::alloc::System;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::{Duration, Instant};

use hugefork::{Heap, Pool, Rooted, ScopedAllocator, Snapshot};

#[global_allocator]
static ALLOCATOR: ScopedAllocator<System> = ScopedAllocator::over(System);

/// The literals of a clause.
const CLAUSE: usize = 3;

const ROUNDS: usize = 5;

/// A variable that is true, or a negative one that is false.
type Literal = i32;

/// The rest of a formula: each clause needs one of its literals.
#[derive(Clone, Default)]
struct State {
    clauses: BTreeMap<u32, Vec<Literal>>,
    /// The clauses that have a literal.
    occurs: BTreeMap<Literal, BTreeSet<u32>>,
    /// Lengths and numbers of the clauses. The first one is the shortest.
    by_len: BTreeSet<(usize, u32)>,
    model: BTreeSet<Literal>,
}

/// Where the work with a state has led.
enum Next {
    Solved,
    DeadEnd,
    Choice(Literal),
}

/// How to take one assignment back: an entry of the log.
struct Undo {
    literal: Literal,
    satisfied: Vec<(u32, Vec<Literal>)>,
    shortened: BTreeSet<u32>,
}

impl State {
    fn of(formula: &[[Literal; CLAUSE]]) -> State {
        let mut state = State::default();
        for (clause, id) in formula.iter().zip(0..) {
            state.add(id, clause.to_vec());
        }
        state
    }

    fn add(&mut self, id: u32, clause: Vec<Literal>) {
        for &literal in &clause {
            self.occurs.entry(literal).or_default().insert(id);
        }
        self.by_len.insert((clause.len(), id));
        self.clauses.insert(id, clause);
    }

    /// Makes a literal true: its clauses are satisfied, and those of its opposite get shorter.
    fn assign(&mut self, literal: Literal) -> Undo {
        self.model.insert(literal);
        let mut satisfied = Vec::new();
        for id in self.occurs.remove(&literal).unwrap_or_default() {
            let clause = self.clauses.remove(&id).expect("it is there");
            self.by_len.remove(&(clause.len(), id));
            for other in clause.iter().filter(|&&other| other != literal) {
                self.occurs.get_mut(other).expect("it occurs").remove(&id);
            }
            satisfied.push((id, clause));
        }
        let shortened = self.occurs.remove(&-literal).unwrap_or_default();
        for &id in &shortened {
            let clause = self.clauses.get_mut(&id).expect("it is there");
            self.by_len.remove(&(clause.len(), id));
            clause.retain(|&other| other != -literal);
            self.by_len.insert((clause.len(), id));
        }
        Undo { literal, satisfied, shortened }
    }

    fn undo(&mut self, undo: Undo) {
        self.model.remove(&undo.literal);
        for &id in &undo.shortened {
            let clause = self.clauses.get_mut(&id).expect("it is there");
            self.by_len.remove(&(clause.len(), id));
            clause.insert(clause.partition_point(|&other| other < -undo.literal), -undo.literal);
            self.by_len.insert((clause.len(), id));
        }
        if !undo.shortened.is_empty() {
            self.occurs.insert(-undo.literal, undo.shortened);
        }
        for (id, clause) in undo.satisfied {
            self.add(id, clause);
        }
    }

    /// Makes the last literals of clauses true until there is none. Gives each assignment to `log`.
    fn propagate(&mut self, mut log: impl FnMut(Undo)) -> Next {
        loop {
            let Some(&(len, id)) = self.by_len.first() else { return Next::Solved };
            match len {
                0 => return Next::DeadEnd,
                1 => log(self.assign(self.clauses[&id][0])),
                _ => return Next::Choice(self.clauses[&id][0]),
            }
        }
    }
}

/// The number of choices tried, and of those that have led to a dead end.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(crate) struct Tried {
    choices: usize,
    pub(crate) dead_ends: usize,
}

fn by_reset(heap: &'static Heap, state: &Rooted<'_, State>, tried: &mut Tried) -> Result<bool, Box<dyn Error>> {
    let assign = |literal| state.write(|state| heap.scope(|| drop(state.assign(literal))));
    let mut open: Vec<(Snapshot, Literal)> = Vec::new();
    loop {
        match state.write(|state| heap.scope(|| state.propagate(drop))) {
            Next::Solved => return Ok(true),
            Next::Choice(literal) => {
                tried.choices += 1;
                open.push((heap.snapshot()?, -literal));
                assign(literal);
            }
            Next::DeadEnd => {
                tried.dead_ends += 1;
                let Some((before, other)) = open.pop() else { return Ok(false) };
                // SAFETY: only this thread uses the heap. Outside of it only `state` owns memory in it, and has since
                // before the first snapshot.
                unsafe { heap.reset_to(&before)? };
                assign(other);
            }
        }
    }
}

fn by_clone(mut state: State, tried: &mut Tried) -> Option<State> {
    let mut open: Vec<(State, Literal)> = Vec::new();
    loop {
        match state.propagate(drop) {
            Next::Solved => return Some(state),
            Next::Choice(literal) => {
                tried.choices += 1;
                open.push((state.clone(), -literal));
                drop(state.assign(literal));
            }
            Next::DeadEnd => {
                tried.dead_ends += 1;
                let (before, other) = open.pop()?;
                state = before;
                drop(state.assign(other));
            }
        }
    }
}

fn by_log(state: &mut State, tried: &mut Tried) -> bool {
    let (mut log, mut open): (Vec<Undo>, Vec<(usize, Literal)>) = (Vec::new(), Vec::new());
    loop {
        match state.propagate(|undo| log.push(undo)) {
            Next::Solved => return true,
            Next::Choice(literal) => {
                tried.choices += 1;
                open.push((log.len(), -literal));
                log.push(state.assign(literal));
            }
            Next::DeadEnd => {
                tried.dead_ends += 1;
                let Some((before, other)) = open.pop() else { return false };
                log.drain(before..).rev().for_each(|undo| state.undo(undo));
                log.push(state.assign(other));
            }
        }
    }
}

/// Adds clauses of three different variables each, with their literals in order. The variables come after the first
/// `before`.
fn add_clauses(formula: &mut Vec<[Literal; CLAUSE]>, before: i32, variables: i32, clauses: usize) {
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |end: i32| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as i32 % end
    };
    let all = formula.len() + clauses;
    while formula.len() < all {
        let mut clause = [(); CLAUSE].map(|()| (before + 1 + below(variables)) * (1 - 2 * below(2)));
        clause.sort_unstable();
        let [a, b, c] = clause.map(i32::abs);
        if a != b && b != c && a != c {
            formula.push(clause);
        }
    }
}

/// Solves a formula in three ways, `ROUNDS` times by turns, and prints medians. The formula has a hard part, with dead
/// ends, and an easy part of `easy` variables.
pub(crate) fn run(hard: i32, easy: i32) -> Result<Tried, Box<dyn Error>> {
    let mut formula = Vec::new();
    add_clauses(&mut formula, 0, hard, hard as usize * 42 / 10);
    add_clauses(&mut formula, hard, easy, easy as usize * 15 / 10);
    let len = (formula.len() * 2048).next_multiple_of(2 << 20).max(32 << 20);
    let mut times = [const { Vec::new() }; 3];
    let mut time = |way: usize, begun: Instant| times[way].push(begun.elapsed());
    let (mut all_tried, mut used, mut is_solved) = (Tried::default(), 0, false);
    for _ in 0..ROUNDS {
        let (pool, mut tried) = (Pool::builder().name("solver").capacity(4 * len).build()?, [Tried::default(); 3]);
        let heap: &'static Heap = Box::leak(Box::new(pool.heap(len)?));
        let state = heap.put(heap.scope(|| State::of(&formula)));
        used = heap.stats().blocks_present * pool.block_size().bytes();
        let begun = Instant::now();
        is_solved = by_reset(heap, &state, &mut tried[0])?;
        time(0, begun);
        let first: BTreeSet<_> = state.read(|state| state.model.clone());

        let state = State::of(&formula);
        let begun = Instant::now();
        let second = by_clone(state, &mut tried[1]);
        time(1, begun);

        let mut third = State::of(&formula);
        let begun = Instant::now();
        let is_solved_by_log = by_log(&mut third, &mut tried[2]);
        time(2, begun);

        assert!(tried.iter().all(|other| *other == tried[0]), "all have searched in the same way");
        assert!(is_solved == second.is_some() && is_solved == is_solved_by_log);
        if let Some(second) = second {
            assert!(first == second.model && first == third.model, "all have found the same");
            assert!(formula.iter().all(|clause| clause.iter().any(|literal| first.contains(literal))), "it is right");
        }
        all_tried = tried[0];
    }
    let [reset, clone, log] = times.map(|mut times: Vec<Duration>| {
        times.sort();
        times[ROUNDS / 2].as_secs_f64() * 1e3
    });
    let Tried { choices, dead_ends } = all_tried;
    println!(
        "{:6} clauses, {:2} MiB, {choices} choices, {dead_ends} dead ends, {}: resets {reset:.1} ms, clones {clone:.1} ms, \
         a log {log:.1} ms",
        formula.len(),
        used >> 20,
        if is_solved { "a solution" } else { "none" },
    );
    Ok(all_tried)
}

fn main() -> Result<(), Box<dyn Error>> {
    for (hard, easy) in [(90, 0), (60, 0), (60, 1000), (60, 4000), (60, 16_000)] {
        run(hard, easy)?;
    }
    Ok(())
}
