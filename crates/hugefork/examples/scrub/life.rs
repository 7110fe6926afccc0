//! Conway's Game of Life in a large world, most of which is quiet.
//!
//! ```text
//! bytes   | tile 0: 64 × 64 cells | tile 1 | … | tile 65 535 | awake: a byte for each tile |
//!           4 KiB: one page         256 MiB of tiles in all    what the next step looks at
//! ```
//! A cell is a byte, and a tile is a page. So a step writes one page for each tile in which something changes, and
//! none where all stays as it is. All that the simulation knows lies in these bytes: whoever puts them back goes on
//! from there.

/// Cells of a tile in a row, and so many rows.
const TILE: usize = 64;
/// Tiles of the world in a row, and so many rows. The last is beside the first, in both directions.
const TILES: usize = 256;
/// Cells of the world in a row.
pub(crate) const SIDE: usize = TILE * TILES;
pub(crate) const TILE_BYTES: usize = TILE * TILE;
/// Where it says which tiles are awake: those that have changed in the last step.
const AWAKE: usize = SIDE * SIDE;
/// The world, and which tiles are awake. Regions are whole blocks of 2 MiB.
pub(crate) const LEN: usize = AWAKE + (2 << 20);

/// A cell that lives. One that has died counts down to zero: embers.
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

/// The first frame: in each tile four cells that stay as they are, and in the middle a gun that shoots at a thicket.
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

/// Makes cells live here and there in the middle of the world.
pub(crate) fn thicket(bytes: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for (x, y) in (0..40 * 40).map(|nth| (nth % 40, nth / 40)) {
        if random.below(3) == 0 {
            set(bytes, SIDE / 2 - 20 + x, SIDE / 2 - 20 + y);
        }
    }
}

/// One step. `changes` is told of each tile that it changes: which one, and its cells before.
pub(crate) fn step(bytes: &mut [u8], mut changes: impl FnMut(usize, &[u8])) {
    // What was quiet in the last step stays so, unless a neighbour was not.
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
        // To write what is there already would be a write, too, and the next snapshot would hold the page once more.
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

/// The tile one to the left (0) or the right (2) of `tile`, and one above (0) or below (2).
fn beside(tile: usize, right: usize, down: usize) -> usize {
    (tile / TILES + down + TILES - 1) % TILES * TILES + (tile + right + TILES - 1) % TILES
}

/// The cells of `tile` after the next step.
fn next(bytes: &[u8], tile: usize) -> [u8; TILE_BYTES] {
    // With the cells around the tile: 1 for each that lives.
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
