//! Prints the huge pages and the base pages of some memory, and the mapping that contains it.
//!
//! Run it with `cargo run -p hugefork-linux --example pages_of`.

use hugefork_linux::advice::collapse;
use hugefork_linux::pagemap_scan::{PageRun, Pagemap, Scan};
use hugefork_linux::procmap_query::Maps;

const HUGE: usize = 2 << 20;

fn main() {
    let mut memory = vec![1_u8; 4 * HUGE];
    let start = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(HUGE));
    let range = start.addr()..start.addr() + 2 * HUGE;
    if let Err(errno) = collapse(start.cast(), HUGE) {
        println!("the first 2 MiB were not collapsed: {errno}");
    }
    let mut found = [PageRun::default(); 64];
    for (kind, wanted) in [("huge", Scan::HUGE), ("base", Scan::BASE)] {
        match Pagemap::open().and_then(|pagemap| pagemap.scan(&range, wanted, &mut found)) {
            Ok(scanned) => {
                for run in &found[..scanned.runs] {
                    println!("{kind} pages: {:#x}..{:#x}", run.start, run.end);
                }
            }
            Err(errno) => println!("this kernel does not report {kind} pages (Linux 6.7): {errno}"),
        }
    }
    match Maps::open().and_then(|maps| maps.at_or_behind(range.start)) {
        Ok(mapping) => println!("one mapping: {:#x}..{:#x}", mapping.start, mapping.end),
        Err(errno) => println!("this kernel does not report single mappings (Linux 6.11): {errno}"),
    }
}
