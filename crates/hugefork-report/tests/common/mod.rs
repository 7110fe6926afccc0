//! What the tests of this crate share.

mod record;

use std::sync::OnceLock;

use hugefork_report::{Record, report};
pub(crate) use record::record;

/// Records that have what this machine's record lacks: curves, percentiles, heat maps, another machine, a case of a
/// later hugefork, and names that try to break the page.
pub(crate) fn everything() -> Vec<Record> {
    let mut records = record();
    records.push(made_up("tasks.json", "AMD EPYC", tasks()));
    records.push(made_up("latency.json", "AMD EPYC", latencies()));
    records.push(made_up("curves.json", "Curved CPU", latencies()));
    records.push(made_up("densities.json", "Dense CPU", densities()));
    records.push(made_up("histories.json", "Long CPU", histories()));
    records.push(made_up("policies.json", "AMD EPYC", policies()));
    records.push(made_up("folios.json", "Xeon", folios()));
    records.push(made_up("<script>.json", "\"Xeon\" <script>alert(1)</script> & 'Co'", hostile()));
    records
}

/// The page of [`everything`], which takes a while to draw without optimisation.
pub(crate) fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| report(&everything()).unwrap())
}

type Entry = (&'static str, String, Vec<(&'static str, String)>, &'static str, &'static str, f64);

fn made_up(name: &str, cpu: &str, entries: Vec<Entry>) -> Record {
    let entry = |(case, subject, params, metric, unit, median): Entry| {
        let params: serde_json::Map<_, _> = params.into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
        let samples = [1.0, 0.95, 1.1, 0.97, 1.02].map(|part| part * median);
        serde_json::json!({"case": case, "subject": subject, "params": params, "metric": metric, "unit": unit,
            "samples": samples, "median": median})
    };
    let file = serde_json::json!({
        "schema": 1, "version": "0.1.0", "command": "hugefork bench </code><script>alert(2)</script>",
        "date": "2026-11-21T14:53:23Z", "commit": "0123456789ab<i>",
        "curves": if name == "curves.json" { curves() } else { Vec::new() },
        "host": {"cpu": cpu, "cpus": 2, "kernel": "Linux 6.18"},
        "results": entries.into_iter().map(entry).collect::<Vec<_>>(),
        "warnings": ["<img src=http://example.com/x.png onerror=alert(3)>"],
    });
    hugefork_report::parse(name, file.to_string().as_bytes()).unwrap()
}

/// Curves over percentiles and over time, and one over something that a later hugefork may come up with.
fn curves() -> Vec<serde_json::Value> {
    let mut curves = Vec::new();
    for density in ["sparse", "dense"] {
        for (subject, pause) in [("hugefork", 80.0), ("fork-4k", 25_000.0), ("fork-thp", 650.0), ("memcpy", 51_000.0)] {
            let curve = |metric: &str, over: &str, points: Vec<(f64, f64)>| {
                let (at, median): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
                serde_json::json!({"case": "writer-latency", "subject": subject, "metric": metric, "unit": "us",
                    "params": {"size": "1GiB", "density": density}, "over": over, "rounds": 5, "at": at, "median": median})
            };
            let ranks = [1.0, 10.0, 50.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.98, 99.99, 99.999, 100.0];
            let rank = |(index, at): (usize, f64)| (at, pause / 1e3 * 1.7f64.powi(index as i32));
            curves.push(curve("latency", "percentile", ranks.into_iter().enumerate().map(rank).collect()));
            let time =
                |step: i32| (10f64.powf(f64::from(step) / 10.0 - 2.0), if step < 20 { pause } else { pause / 500.0 });
            curves.push(curve("cost", "time", [(0.0, 0.3)].into_iter().chain((0..40).map(time)).collect()));
            curves.push(curve("heat", "<b>temperature", vec![(20.0, 1.0)]));
        }
    }
    curves
}

fn tasks() -> Vec<Entry> {
    let mut entries = Vec::new();
    for tasks in [1, 2, 4, 8] {
        let rates = [("hugefork", 20.0), ("hugefork-zeroed", 26.0), ("hugefork-refilling", 21.0), ("kernel-thp", 13.0)];
        for (subject, rate) in rates {
            let params = vec![("size", "1GiB".to_owned()), ("tasks", tasks.to_string())];
            let rate = rate * f64::from(tasks).sqrt();
            entries.push(("anon-w-rand", subject.to_owned(), params, "throughput", "GiB/s", rate));
        }
    }
    entries
}

fn latencies() -> Vec<Entry> {
    let mut entries = Vec::new();
    for density in ["sparse", "dense"] {
        for (subject, base) in [("hugefork", 0.07), ("fork-4k", 1.9), ("fork-thp", 2.0), ("memcpy", 0.06)] {
            let params = vec![("size", "1GiB".to_owned()), ("density", density.to_owned())];
            for (metric, times) in [("p50", 1.0), ("p90", 1.2), ("p99", 40.0), ("p99.9", 300.0), ("max", 900.0)] {
                entries.push(("writer-latency", subject.to_owned(), params.clone(), metric, "us", base * times));
            }
            entries.push(("writer-latency", subject.to_owned(), params.clone(), "total", "ms", base * 1000.0));
            entries.push(("writer-latency", subject.to_owned(), params, "amplification", "ratio", 26000.0 * base));
        }
    }
    entries
}

/// Eleven subjects over seven densities in the first epoch, over three in the third, and over one in clusters.
fn histories() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (density, writes) in [("10", 10), ("100", 100), ("1000", 1000), ("5000", 5000)] {
        let kib = f64::from(writes) * 4.0;
        for (subject, each, extra) in [("hugefork", 2.0 + kib / 400.0, kib), ("fork-4k", 27.0 + kib / 200.0, kib * 1.1)]
        {
            let params = [
                ("size", "1GiB".to_owned()),
                ("density", density.to_owned()),
                ("pattern", "random".to_owned()),
                ("writes", writes.to_string()),
                ("held", "100".to_owned()),
            ];
            entries.push(("history", subject.to_owned(), params.to_vec(), "each", "ms", each));
            entries.push(("history", subject.to_owned(), params.to_vec(), "extra", "MiB", extra / 1024.0));
        }
    }
    entries
}

fn densities() -> Vec<Entry> {
    let subjects = [
        ("hugefork", 0.1, 90.0),
        ("hugefork-default", 0.1, 400.0),
        ("hugefork-block", 0.4, 80.0),
        ("hugefork-page", 0.2, 700.0),
        ("fork-thp", 0.9, 800.0),
        ("fork-hugetlb", 1.1, 200.0),
        ("fork-4k", 19.0, 820.0),
        ("memcpy", 160.0, 30.0),
        ("uffd-wp-4k", 0.06, 1800.0),
        ("uffd-wp-2m", 0.07, 131.0),
        ("memfd-private", 0.08, 760.0),
    ];
    let all = [10, 100, 1_000, 5_000, 50_000, 500_000, 1_000_000];
    let random = |epoch: &'static str| move |density| (density, "random", epoch);
    let third = [5_000, 50_000, 500_000].map(random("3"));
    let works = all.map(random("1")).into_iter().chain(third).chain([(5_000, "clustered", "1")]);
    let mut entries = Vec::new();
    for (density, pattern, epoch) in works {
        for (subject, pause, writes) in subjects {
            let part = f64::from(density) / 1e6;
            let taken = pause + writes * part.sqrt();
            let params =
                [("density", density.to_string()), ("writes", density.to_string()), ("size", "1GiB".to_owned())];
            let rest = [("pattern", pattern.to_owned()), ("epoch", epoch.to_owned())];
            let params = params.into_iter().chain(rest).collect();
            entries.push(("writer-latency", subject.to_owned(), params, "taken", "ms", taken));
        }
    }
    entries
}

fn policies() -> Vec<Entry> {
    let mut entries = Vec::new();
    let params = |order: &str, kernel: &str, window: Option<&str>| {
        let mut params = vec![("size", "2MiB".to_owned()), ("use", "64KiB".to_owned())];
        params.extend([("order", order.to_owned()), ("kernel", kernel.to_owned())]);
        params.extend(window.map(|window| ("window", window.to_owned())));
        params
    };
    for (index, kernel) in ["portable", "rep", "sse2-nt", "avx512", "avx512-nt", "clzero"].into_iter().enumerate() {
        let cost = 25.0 + 9.0 * index as f64;
        for (order, times) in [("target-last", 2.0), ("straight", 1.1), ("neighbourhood-last", 1.2)] {
            let params = params(order, kernel, None);
            entries.push(("move", format!("{order}/{kernel}"), params, "total", "us", cost * times));
        }
        for window in ["64KiB", "128KiB"] {
            let params = params("hybrid", kernel, Some(window));
            entries.push(("move", format!("hybrid/{kernel}+rep@{window}"), params, "total", "us", cost));
        }
    }
    entries.push(("move", "hugefork".to_owned(), params("hybrid", "sse2-nt", Some("128KiB")), "total", "us", 43.5));
    entries
}

fn folios() -> Vec<Entry> {
    let mut entries = Vec::new();
    for (index, block) in ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "2MiB"].into_iter().enumerate() {
        for (subject, cost) in [("hugefork", 30.0), ("kernel", 50.0)] {
            let params = vec![("size", "1GiB".to_owned()), ("block_size", block.to_owned())];
            let cost = cost / 3f64.powi(index as i32);
            entries.push(("lazy-free", subject.to_owned(), params, "mark", "ms", cost));
        }
    }
    entries
}

fn hostile() -> Vec<Entry> {
    let long = "a subject whose name is much longer than any column or chart is wide, and then some more".to_owned();
    let params = || vec![("mode", "<b>'\"&".to_owned())];
    vec![
        ("defrag <b>", "hugefork".to_owned(), params(), "moves <i>", "count", 5.0),
        ("defrag <b>", "x' onload='alert(4)".to_owned(), params(), "moves <i>", "count", -3.0),
        ("defrag <b>", long, params(), "moves <i>", "count", 1e14),
    ]
}

/// Every figure of a table of the page: the value in full, and how it is shown.
pub(crate) fn figures(html: &str) -> Vec<(f64, &str)> {
    let figure = |part: &'_ str| -> Option<(f64, usize, usize)> {
        let (value, rest) = part.split_once("\">")?;
        let start = part.len() - rest.len();
        Some((value.parse().ok()?, start, start + rest.find("</data>")?))
    };
    html.split("<data value=\"")
        .skip(1)
        .filter_map(|part| figure(part).map(|(v, from, to)| (v, &part[from..to])))
        .collect()
}

/// The figures of each chart of the page, by the chart's number.
pub(crate) fn charts(html: &str) -> Vec<&str> {
    html.split("<figure ").skip(1).map(|part| part.split("</figure>").next().unwrap()).collect()
}
