//! Prints how often a program has forked that `hugefork run` started: `cargo run --example stats_of -- PID`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("which process? stats_of PID")?.parse()?;
    let report = hugefork_preload::stats::of(pid)?;
    println!("{} forks, the last took {} us", report.counters.total_forks, report.counters.latest_fork_usec);
    Ok(())
}
