//! Writes the predictions as a file of results like `hugefork bench --json` does, for `hugefork
//! report` to draw.

use std::io::{self, Write};

use hugefork_kernels::{Order, Work};

use super::{
    machine::Outcome,
    tables::{Predicted, plans},
    workload::{BLOCK, Plan},
};

/// Writes the predictions, with the command that made them.
pub(crate) fn write(command: &str, predicted: &[Predicted], out: &mut dyn Write) -> io::Result<()> {
    let results: Vec<String> = predicted.iter().flat_map(results).collect();
    write!(
        out,
        r#"{{
"schema": 1,
"version": "{}",
"command": "{command}",
"host": {{
  "cpu": "a model of two Xeon E5-2699 v3",
  "cpus": 36,
  "caches": [{{"level": 3, "kind": "Unified", "size": "45MiB"}}]
}},
"results": [
{}
]
}}
"#,
        env!("CARGO_PKG_VERSION"),
        results.join(",\n")
    )
}

/// Each plan as a subject, for each number of threads that share the cache. The most informative plans come first,
/// since the page draws a limited number of lines.
fn results(predicted: &Predicted) -> impl Iterator<Item = String> {
    let case = match predicted.work {
        Work::Clear => "model-clear",
        Work::Copy => "model-copy",
    };
    let mut plans: Vec<(usize, Plan)> = plans().into_iter().map(|(_, plan)| plan).enumerate().collect();
    plans.sort_by_key(|(_, plan)| plan.order == Order::Hybrid && plan.within == Order::Straight);
    plans.into_iter().flat_map(move |(nth, plan)| {
        predicted.columns.iter().filter(|(threads, _)| *threads > 1).map(move |(threads, column)| {
            let Outcome { throughput, .. } = column[nth];
            // The throughput is in bytes per microsecond.
            let gib = throughput * 1e6 / f64::from(1 << 30);
            format!(
                r#"  {{"case": "{case}", "subject": "{}", "params": {{"tasks": {threads}, "block_size": "2MiB"}}, "metric": "throughput", "unit": "GiB/s", "samples": [{gib:.4}], "median": {gib:.4}}}"#,
                name(plan)
            )
        })
    })
}

/// The name of a plan, in the words that `hugefork bench` uses for kernels.
fn name(plan: Plan) -> String {
    let kind = if plan.within == Order::TargetLast { "reversed" } else { "window" };
    match (plan.order, plan.past_cache) {
        (Order::Hybrid, _) => format!("{kind}-{}KiB", plan.window.bytes >> 10),
        (_, true) => "past-cache".to_owned(),
        (order, false) => order.name().to_owned(),
    }
}

const _: () = assert!(BLOCK == 2 << 20, "the file says so");
