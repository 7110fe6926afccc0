//! A process of one thread, beside the engine's own, holds many snapshots and reads what they have. It is made by
//! `fork(2)`, since the harness has a thread more; its pool is its first.

mod common;

use common::alone::alone;
use common::forked::in_fork;
use hugefork::{Pool, Snapshot};

const BLOCK: usize = 2 << 20;
const LEN: usize = 4 * BLOCK;
const PAGE: usize = 4096;
const HELD: usize = 40;

/// Numbers that look like chance.
struct Numbers(usize);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The first byte of each page is what was written there last.
fn has(snapshot: &Snapshot, expected: &[u8]) -> bool {
    let mut byte = [0];
    expected.iter().enumerate().all(|(page, value)| {
        snapshot.read_at(page * PAGE, &mut byte).unwrap();
        byte[0] == *value
    })
}

/// What the child does: writes, snapshots, resets and drops, each snapshot compared with a vector.
fn live() -> i32 {
    let pool = Pool::builder().capacity(200 * BLOCK).build().unwrap();
    let mut region = pool.region(LEN).unwrap();
    let mut now = vec![1_u8; LEN / PAGE];
    region.as_mut_slice().fill(1);
    let (mut numbers, mut held) = (Numbers(12345), Vec::new());
    for round in 0..300_usize {
        for _ in 0..numbers.below(30) {
            // Half of them are the same few again and again.
            let page = if numbers.below(2) == 0 { 3 + numbers.below(40) } else { numbers.below(now.len()) };
            now[page] = round as u8;
            region.as_mut_slice()[page * PAGE] = now[page];
        }
        held.push((region.snapshot().unwrap(), now.clone()));
        if held.len() > HELD {
            held.swap_remove(numbers.below(HELD));
        }
        match numbers.below(20) {
            0 => {
                let (snapshot, then) = &held[numbers.below(held.len())];
                region.reset_to(snapshot).unwrap();
                now.clone_from(then);
            }
            1 => {
                let first = numbers.below(now.len() - 8);
                region.discard(first * PAGE..(first + 8) * PAGE).unwrap();
                now[first..first + 8].fill(0);
            }
            _ => {}
        }
        let (snapshot, then) = &held[numbers.below(held.len())];
        if !has(snapshot, then) {
            eprintln!("round {round}: a snapshot has other bytes than the region had");
            return 1;
        }
    }
    if !held.iter().all(|(snapshot, then)| has(snapshot, then)) {
        eprintln!("at the end a snapshot has other bytes than the region had");
        return 1;
    }
    drop((held, region));
    i32::from(pool.stats().blocks_free != pool.stats().blocks)
}

#[test]
fn who_is_alone_finds_in_each_snapshot_what_was_there() {
    alone(|| assert_eq!(in_fork(live).code(), Some(0))).well();
}
