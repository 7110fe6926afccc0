//! A search that branches and rewinds: at each choice it keeps a snapshot, tries one way, and goes back to try the
//! next. The search undoes nothing by hand, even if a step has changed a lot.
//!
//! ```text
//! start ─▶ choice 1 ─▶ choice 2 ─▶ dead end
//!             ▲ ◀────────┘ reset_to: what was written since
//!             └──────▶ choice 2' ─▶ …
//! ```
//! The example puts eight queens on a board, in a region of 64 MiB. Beside the board lies a table with one page for
//! each square: it stands for the large state of a real solver.
//!
//! Run it with `cargo run --release -p hugefork --example branch_and_rewind`.

use std::error::Error;

use hugefork::{BlockSize, Pool, Region};

const LEN: usize = 64 << 20;
const PAGE: usize = 4096;
const QUEENS: usize = 8;

/// The number of moves tried, and the number of times that the search went back.
#[derive(Default)]
struct Search {
    tried: usize,
    rewound: usize,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // Each snapshot costs the blocks that are written before the next one. Small blocks keep eight snapshots cheap.
    let pool = Pool::builder().name("search").capacity(2 * LEN).block_size(BlockSize::KIB_64).build()?;
    let mut board = pool.region(LEN)?;
    // The table is as large as the region; the search never touches most of it again.
    board.as_mut_slice().chunks_mut(PAGE).for_each(|page| page[0] = 0);
    let mut search = Search::default();
    assert!(search.place(&mut board, 0)?, "there is a way");
    let places: Vec<_> = (0..QUEENS).map(|row| place_of(board.as_mut_slice(), row)).collect();
    for (row, &column) in places.iter().enumerate() {
        let is_free = |(other, &at): (usize, &usize)| at != column && at.abs_diff(column) != row.abs_diff(other);
        assert!(places.iter().enumerate().filter(|(other, _)| *other != row).all(is_free), "none attacks another");
    }
    println!("{places:?} after {} tries, {} times back", search.tried, search.rewound);
    Ok(())
}

impl Search {
    /// Puts queens into `row` and all later rows. False if that is impossible; then the board is unchanged.
    fn place(&mut self, board: &mut Region, row: usize) -> Result<bool, Box<dyn Error>> {
        if row == QUEENS {
            return Ok(true);
        }
        let before = board.snapshot()?;
        for column in 0..QUEENS {
            if is_attacked(board.as_mut_slice(), row, column) {
                continue;
            }
            self.tried += 1;
            put(board.as_mut_slice(), row, column);
            if self.place(board, row + 1)? {
                return Ok(true);
            }
            board.reset_to(&before)?;
            self.rewound += 1;
        }
        Ok(false)
    }
}

fn page_of(row: usize, column: usize) -> usize {
    // They lie far apart.
    (row * QUEENS + column) * (LEN / PAGE / QUEENS / QUEENS) * PAGE
}

fn is_attacked(board: &[u8], row: usize, column: usize) -> bool {
    board[page_of(row, column)] > 0
}

/// The column of the queen in `row`, read from the board.
fn place_of(board: &[u8], row: usize) -> usize {
    (0..QUEENS).find(|&column| board[page_of(row, column) + 1] > 0).expect("a queen in each row")
}

fn put(board: &mut [u8], row: usize, column: usize) {
    board[page_of(row, column) + 1] = 1;
    for (other, at) in (row + 1..QUEENS).flat_map(|other| (0..QUEENS).map(move |at| (other, at))) {
        if at == column || at.abs_diff(column) == other - row {
            board[page_of(other, at)] += 1;
        }
    }
}
