//! Draws results of `hugefork bench --json` as one page, and says how many figures are worse in the second than in the
//! first.
//!
//! Run it with `cargo run -p hugefork-report --example page_of_results before.json after.json > page.html`.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use hugefork_report::{Record, Verdict, compare, load, report};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    draw(&files, &mut std::io::stdout())
}

/// The tests run it, too.
pub(crate) fn draw(files: &[PathBuf], page: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let records = files.iter().map(|file| load(file)).collect::<Result<Vec<Record>, _>>()?;
    if let [before, after, ..] = &records[..] {
        let comparison = compare(before, after);
        let worse = comparison.rows.iter().filter(|row| row.verdict == Some(Verdict::Worse)).count();
        eprintln!("{comparison}{worse} figures are worse.");
    }
    Ok(page.write_all(report(&records).as_bytes())?)
}
