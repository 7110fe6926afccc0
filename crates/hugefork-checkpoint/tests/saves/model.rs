//! Random saves and loads beside plain vectors.

use std::collections::HashMap;

use hugefork::{Region, Snapshot};
use hugefork_checkpoint::{Part, Saved, Since, load, save, save_since};
use proptest::prelude::*;

use super::{BLOCK, Folder, pool, write};

const LEN: usize = 12 * BLOCK;

/// The part of the region that is saved as an array of its own; it is not aligned to pages.
const INNER: std::ops::Range<usize> = BLOCK - 100..3 * BLOCK + 77;

#[derive(Clone, Debug)]
enum Op {
    Write { start: usize, len: usize, value: u8 },
    Save { to: usize, since: Earlier },
    Restart { from: usize },
}

#[derive(Clone, Copy, Debug)]
enum Earlier {
    Nothing,
    /// The last save, by its snapshot.
    Last,
    Directory(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![1..9usize, 4000..9000usize, BLOCK..3 * BLOCK];
    let value = prop_oneof![Just(0), any::<u8>()];
    let write = (0..LEN, len, value).prop_map(|(start, len, value)| Op::Write { start, len, value });
    let earlier = prop_oneof![
        1 => Just(Earlier::Nothing),
        4 => Just(Earlier::Last),
        2 => (0..3usize).prop_map(Earlier::Directory),
    ];
    let save = (0..3usize, earlier).prop_map(|(to, since)| Op::Save { to, since });
    let restart = (0..3usize).prop_map(|from| Op::Restart { from });
    prop::collection::vec(prop_oneof![6 => write, 4 => save, 1 => restart], 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_load_gives_the_bytes_of_the_save(ops in ops()) {
        let (folder, pool) = (Folder::new(), pool());
        let directories = ["a", "b", "c"].map(|name| folder.at(name));
        let mut region = pool.region(LEN).unwrap();
        let mut now = vec![0; LEN];
        let mut kept: HashMap<usize, Vec<u8>> = HashMap::new();
        let mut last: Option<(Saved, Snapshot)> = None;
        for op in ops {
            match op {
                Op::Write { start, len, value } => {
                    let range = start..LEN.min(start + len);
                    now[range.clone()].fill(value);
                    write(&mut region, range, value);
                }
                Op::Save { to, since } => {
                    let snapshot = region.snapshot().unwrap();
                    let mut parts = vec![Part::of("all", &snapshot), Part::of_range("inner", &snapshot, INNER)];
                    let saved = match (since, &last) {
                        (Earlier::Last, Some((saved, older))) => {
                            parts = parts.into_iter().map(|part| part.since(older)).collect();
                            save_since(&directories[to], &parts, Since::Save(saved))
                        }
                        (Earlier::Directory(from), _) => {
                            save_since(&directories[to], &parts, Since::Directory(&directories[from]))
                        }
                        _ => save(&directories[to], &parts),
                    };
                    last = Some((saved.unwrap(), snapshot));
                    kept.insert(to, now.clone());
                }
                Op::Restart { from } => {
                    if let Some(bytes) = kept.get(&from) {
                        region = load(&directories[from], &pool).unwrap().remove("all").unwrap();
                        now.clone_from(bytes);
                    }
                }
            }
            for (at, expected) in &kept {
                check(load(&directories[*at], &pool).unwrap(), expected);
            }
        }
    }
}

fn check(mut regions: std::collections::BTreeMap<String, Region>, expected: &[u8]) {
    assert!(regions.get_mut("all").unwrap().as_mut_slice() == expected);
    let inner = regions.get_mut("inner").unwrap().as_mut_slice();
    assert!(inner[..INNER.len()] == expected[INNER]);
    assert!(inner[INNER.len()..].iter().all(|&byte| byte == 0));
}
