//! Runs one case of the bench inside a program and prints its figures.
//!
//! Run it with `cargo run --release -p hugefork-bench --example own_table`.

use std::error::Error;
use std::ops::ControlFlow;

use hugefork_bench::cases::snapshot::Snapshot;
use hugefork_bench::runner::{self, Observer, Progress};
use hugefork_bench::{Case, Host, Options, Plan, Report, Settings, Subject};

/// Says nothing while it runs.
struct Quiet;

impl Observer for Quiet {
    fn sampled(&mut self, _: Progress<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn case_ended(&mut self, _: &dyn Case, _: &Report) -> Result<(), String> {
        Ok(())
    }
}

/// The tests run it, too.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(vec![&Snapshot]);
    options.sizes = vec![32 << 20];
    options.subjects = Some(vec![Subject::Hugefork, Subject::Memcpy]);
    let host = Host::read();
    let mut plan = Plan::new(&options, &host)?;
    plan.settle(&host, Settings::Fixed);
    let mut report = Report::new("own_table".to_owned(), host.clone());
    runner::run(&plan, &host, &mut report, &mut Quiet)?;
    for result in &report.results {
        println!(
            "{:<10} {:<10} {:<12} {:>10.4} {}",
            result.case,
            result.subject,
            result.metric,
            result.summary().median,
            result.unit
        );
    }
    assert!(report.failed.is_empty() && report.results.len() >= 2, "{:?}", report.failed);
    Ok(())
}
