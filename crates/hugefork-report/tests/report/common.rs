//! Records for the tests of this crate.

use hugefork_report::{Record, parse};
use serde_json::{Value, json};

/// A result, with five samples around `median`.
pub(crate) fn result(case: &str, subject: &str, params: Value, metric: &str, unit: &str, median: f64) -> Value {
    let samples = [1.0, 0.95, 1.1, 0.97, 1.02].map(|part| part * median);
    json!({"case": case, "subject": subject, "params": params, "metric": metric, "unit": unit, "samples": samples,
        "median": median})
}

pub(crate) fn made_up(name: &str, cpu: &str, results: Vec<Value>) -> Record {
    let file = json!({
        "schema": 1, "version": "0.1.0", "command": "hugefork bench --full --json results.json", "commit": "0123456789ab",
        "date": "2026-11-29T14:53:23Z", "results": results,
        "host": {"cpu": cpu, "cpus": 2, "kernel": "Linux 6.18", "memory": "24105MiB"},
    });
    parse(name, file.to_string().as_bytes()).unwrap()
}

/// A record of every case of this hugefork, with figures as they are on a small machine.
pub(crate) fn every_case() -> Record {
    let mut results = Vec::new();
    let mut add = |case: &str, subject: &str, params: Value, figures: &[(&str, &str, f64)]| {
        for (metric, unit, median) in figures {
            results.push(result(case, subject, params.clone(), metric, unit, *median));
        }
    };
    let snapshots = [
        ("hugefork", 0.2),
        ("fork-4k", 20.0),
        ("fork-thp", 0.9),
        ("fork-hugetlb", 0.5),
        ("memcpy", 120.0),
        ("shadow-copy", 3.0),
    ];
    for (size, gib, held) in [
        ("256MiB", 0.25, 0),
        ("1GiB", 1.0, 0),
        ("4GiB", 4.0, 0),
        ("1GiB", 1.0, 1),
        ("1GiB", 1.0, 10),
        ("1GiB", 1.0, 100),
    ] {
        for (subject, call) in snapshots {
            let (call, late) = (call * gib, 1.0 + f64::from(held) / 20.0);
            let params = json!({"size": size, "held": held, "rate": 10000});
            let figures = [
                ("call", "ms", call),
                ("p50", "us", 2.0 * late),
                ("p99", "us", 40.0 * call * late),
                ("p99.9", "us", 800.0 * call * late),
                ("max", "us", 1100.0 * call * late),
                ("cpu", "ms", 50.0 + 2.0 * call * late),
                ("memory", "MiB", 40.0 * (1.0 + f64::from(held))),
            ];
            add("snapshot", subject, params, &figures);
        }
    }
    let resets = [("hugefork", 0.06), ("memfd-private", 0.35), ("pagemap-scan", 8.0), ("known-pages", 0.04)];
    for (pages, times) in [("same", 1.0), ("others", 9.0)] {
        for written in [10, 100, 1000, 10000] {
            for (subject, reset) in resets {
                let reset = reset * times * f64::from(written);
                let params = json!({"size": "1GiB", "pages": pages, "written": written});
                add("reset", subject, params, &[("reset", "us", reset), ("cpu", "us", reset * 1.1)]);
            }
        }
    }
    for (changed, part) in [("0.1%", 0.001), ("1%", 0.01), ("10%", 0.1), ("100%", 1.0)] {
        for (subject, find) in [("hugefork", 110.0 * part), ("memcmp", 115.0), ("pagemap-scan", 3.0)] {
            add("changes", subject, json!({"size": "1GiB", "changed": changed}), &[("find", "ms", find)]);
        }
    }
    for (memory, cpus) in [("fresh", "1"), ("fresh", "all"), ("recycled", "1"), ("recycled", "all")] {
        for (subject, pass) in
            [("hugefork", 121.0), ("hugefork-upfront", 52.0), ("kernel-thp", 118.0), ("kernel-hugetlb", 117.0)]
        {
            let figures = [("pass", "ms", pass), ("p50", "us", pass), ("p99", "us", pass * 3.0), ("cpu", "ms", pass)];
            add("first-touch", subject, json!({"size": "1GiB", "memory": memory, "cpus": cpus}), &figures);
        }
    }
    for when in ["before", "held", "after"] {
        for (subject, read) in [("hugefork", 80.0), ("fork-thp", 81.0), ("fork-4k", 130.0)] {
            add(
                "read-after",
                subject,
                json!({"size": "1GiB", "when": when}),
                &[("read", "ns", read), ("p99", "ns", read * 2.0)],
            );
        }
    }
    for (subject, rate) in [("hugefork", 9.8), ("kernel-thp", 9.5), ("kernel-4k", 4.5), ("limit", 14.0)] {
        add(
            "anon-w-seq",
            subject,
            json!({"size": "1GiB", "tasks": 2}),
            &[("throughput", "GiB/s", rate), ("create", "ms", 1.0)],
        );
    }
    for (subject, rate) in [("hugefork", 7.6), ("fork-thp", 2.8), ("fork-4k", 2.7)] {
        add(
            "anon-cow-seq",
            subject,
            json!({"size": "1GiB", "tasks": 2}),
            &[("throughput", "GiB/s", rate), ("create", "ms", 1.0)],
        );
    }
    for size in ["4KiB", "64KiB", "2MiB"] {
        for (subject, mark) in [("hugefork", 0.04), ("kernel", 0.3)] {
            let figures =
                [("mark", "ms", mark), ("mark+rewrite", "ms", mark * 90.0), ("mark+reclaim", "ms", mark * 150.0)];
            add("lazy-free", subject, json!({"size": "1GiB", "block_size": size}), &figures);
        }
    }
    for case in ["clear", "copy"] {
        for (subject, order) in
            [("hugefork", "hybrid"), ("target-last/rep", "target-last"), ("straight/avx2", "straight")]
        {
            let params = json!({"size": "2MiB", "use": "64KiB", "order": order, "area": "1GiB"});
            add(case, subject, params, &[("op", "us", 93.0), ("use", "us", 1.2), ("total", "us", 94.2)]);
        }
    }
    made_up("results.json", "A CPU", results)
}

/// A record whose names try to break the page, with a case of a later hugefork.
pub(crate) fn hostile() -> Record {
    let evil = "</code><script>alert(1)</script><img src=http://example.com/x.png onerror=alert(3)>";
    let mut results = Vec::new();
    for size in ["1GiB", "$\\frac{1}{", "\"><script>", "4GiB"] {
        for subject in ["hugefork", "$\\sqrt{", "</svg><script>alert(2)</script>", "&amp;|`*"] {
            for median in [-1.0, 0.0, 1e-300, 1e14] {
                let params = json!({"size": size, "held": 0, evil: evil});
                results.push(result("snapshot", subject, params, "call", "ms", median));
            }
        }
    }
    results.push(result("defragment <b>", "hugefork", json!({"</table>": "x"}), "moves <i>", "\"us\"", 0.625));
    made_up("<script>.json", "\"Xeon\" <script>alert(1)</script> & 'Co'", results)
}
