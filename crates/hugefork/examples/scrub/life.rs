//! Conway's Game of Life in a large world, most of which is quiet.
//!
//! ```text
//! bytes   | tile 0: 64 × 64 cells | tile 1 | … | tile 65 535 | awake: a byte for each tile |
//!           4 KiB: one page         256 MiB of tiles in all    what the next step looks at
//! ```
//! A cell is a byte, and a tile is a page. So a step writes one page for each tile in which a cell changes, and no
//! other page. These bytes are the whole state of the simulation: a reset of the region rewinds it.

/// A tile has this many rows, each with this many cells.
const TILE: usize = 64;
/// The world has this many rows of tiles, each with this many tiles. Its opposite edges are joined.
const TILES: usize = 256;
/// Cells of the world in a row.
pub(crate) const SIDE: usize = TILE * TILES;
pub(crate) const TILE_BYTES: usize = TILE * TILE;
/// The offset of the list of awake tiles: those that changed in the last step.
const AWAKE: usize = SIDE * SIDE;
/// The length of the region: the world and the list of awake tiles. Regions are whole blocks of 2 MiB.
pub(crate) const LEN: usize = AWAKE + (2 << 20);

/// The value of a living cell. A dead cell counts down from it to zero, and is drawn as an ember meanwhile.
pub(crate) const LIVES: u8 = 8;

/// A gun that throws a glider each 30 steps (Gosper, 1970).
const GUN: [&str; 9] = [
    "........................O...........",
    "......................O.O...........",
    "............OO......OO............OO",
    "...........O...O....OO............OO",
    "OO........O.....O...OO..............",
    "OO........O...O.OO....O.O...........",
    "..........O.....O.......O...........",
    "...........O...O....................",
    "............OO......................",
];

/// The first frame: each tile has four cells that never change, and a gun in the middle shoots at a thicket.
pub(crate) fn begin(bytes: &mut [u8]) {
    let mut random = Random(5);
    for (left, top) in (0..TILES * TILES).map(|tile| (tile % TILES * TILE, tile / TILES * TILE)) {
        let (x, y) = (left + random.below(TILE), top + random.below(TILE));
        for (x, y) in [(x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1)] {
            bytes[place(x, y)] = LIVES;
        }
    }
    thicket(bytes, 5);
    for (y, row) in GUN.iter().enumerate() {
        for (x, _) in row.bytes().enumerate().filter(|(_, cell)| *cell == b'O') {
            set(bytes, SIDE / 2 - 72 + x, SIDE / 2 - 34 + y);
        }
    }
}

/// Makes random cells in the middle of the world live.
pub(crate) fn thicket(bytes: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for (x, y) in (0..40 * 40).map(|nth| (nth % 40, nth / 40)) {
        if random.below(3) == 0 {
            set(bytes, SIDE / 2 - 20 + x, SIDE / 2 - 20 + y);
        }
    }
}

/// Makes one step. Calls `changes` with the number and the old cells of each tile that changes.
pub(crate) fn step(bytes: &mut [u8], mut changes: impl FnMut(usize, &[u8])) {
    // A tile can change only if it or a neighbour changed in the last step.
    let mut tiles: Vec<usize> = (0..TILES * TILES).filter(|tile| bytes[AWAKE + tile] > 0).collect();
    let around = |tile: usize| (0..9).map(move |nth| beside(tile, nth % 3, nth / 3));
    tiles = tiles.into_iter().flat_map(around).collect();
    tiles.sort_unstable();
    tiles.dedup();
    let after: Vec<_> = tiles.iter().map(|&tile| next(bytes, tile)).collect();
    for (tile, after) in tiles.into_iter().zip(after) {
        let before = &mut bytes[tile * TILE_BYTES..][..TILE_BYTES];
        let has_changed = *before != after[..];
        if has_changed {
            changes(tile, before);
            before.copy_from_slice(&after);
        }
        // Equal values are not written: any write would make the next snapshot hold the page once more.
        if bytes[AWAKE + tile] != u8::from(has_changed) {
            bytes[AWAKE + tile] = u8::from(has_changed);
        }
    }
}

/// The cell at `x`, `y`.
pub(crate) fn cell(bytes: &[u8], x: usize, y: usize) -> u8 {
    bytes[place(x, y)]
}

fn set(bytes: &mut [u8], x: usize, y: usize) {
    let at = place(x, y);
    bytes[at] = LIVES;
    bytes[AWAKE + at / TILE_BYTES] = 1;
}

fn place(x: usize, y: usize) -> usize {
    (y / TILE % TILES * TILES + x / TILE % TILES) * TILE_BYTES + y % TILE * TILE + x % TILE
}

/// A neighbour of `tile`: `right` is 0 for the column to the left, 1 for the same column, 2 for the column to the
/// right; `down` is 0, 1 or 2 for the row above, the same row, or the row below.
fn beside(tile: usize, right: usize, down: usize) -> usize {
    (tile / TILES + down + TILES - 1) % TILES * TILES + (tile + right + TILES - 1) % TILES
}

/// The cells of `tile` after the next step.
fn next(bytes: &[u8], tile: usize) -> [u8; TILE_BYTES] {
    // The tile with the cells around it: 1 for each living cell.
    let mut lives = [[0; TILE + 2]; TILE + 2];
    for (y, row) in lives.iter_mut().enumerate() {
        let (down, line) = (y.div_ceil(TILE), (y + TILE - 1) % TILE * TILE);
        let line = |right: usize| &bytes[beside(tile, right, down) * TILE_BYTES + line..][..TILE];
        let (left, cells, right) = (line(0), line(1), line(2));
        let wide = left[TILE - 1..].iter().chain(cells).chain(&right[..1]);
        row.iter_mut().zip(wide).for_each(|(life, cell)| *life = u8::from(*cell == LIVES));
    }
    let mut cells = [0; TILE_BYTES];
    cells.copy_from_slice(&bytes[tile * TILE_BYTES..][..TILE_BYTES]);
    for (rows, cells) in lives.windows(3).zip(cells.chunks_exact_mut(TILE)) {
        let mut sums = [0; TILE + 2];
        sums.iter_mut().enumerate().for_each(|(x, sum)| *sum = rows[0][x] + rows[1][x] + rows[2][x]);
        for (sums, cell) in sums.windows(3).zip(cells) {
            let lives = match sums[0] + sums[1] + sums[2] {
                3 => true,
                4 => *cell == LIVES, // it is one of the four
                _ => false,
            };
            *cell = if lives { LIVES } else { cell.saturating_sub(1) };
        }
    }
    cells
}

/// The generator of Marsaglia, "xorshift".
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % end as u64) as usize
    }
}
