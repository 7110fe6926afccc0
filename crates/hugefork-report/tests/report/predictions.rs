//! The model of the patches' machine (hugefork-kernels) writes its predictions as a file of results, which this crate
//! can read.

#[expect(dead_code, reason = "what its own test asks of it")]
#[path = "../../../hugefork-kernels/examples/model/main.rs"]
mod model;

use hugefork_report::{load, report};

#[test]
fn predictions_of_the_model_make_a_page() {
    let file = std::env::temp_dir().join(format!("hugefork-model-{}.json", std::process::id()));
    let arguments = ["--blocks", "10", "--json", file.to_str().expect("a plain path")].map(str::to_owned);
    let mut printed = Vec::new();
    let answered = model::answer(arguments.into_iter(), &mut printed);
    let loaded = load(&file);
    let _ = std::fs::remove_file(&file);
    assert!(answered.is_ok(), "{answered:?}");
    let record = loaded.expect("results as any");
    // Clear and copy, for five numbers of threads that share the cache and thirteen plans.
    assert_eq!(record.entries.len(), 2 * 5 * 13);
    assert!(record.entries.iter().all(|entry| entry.median > 0.0));
    let page = report(&[record]);
    for text in ["two Xeon E5-2699 v3", "throughput GiB/s", "target-last"] {
        assert!(page.contains(text), "{text}");
    }
    let printed = String::from_utf8(printed).expect("the model prints text");
    assert!(printed.contains("Blocks are cleared") && !printed.contains("the patches"), "the predictions alone");
}
