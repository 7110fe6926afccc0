//! The example does what it says.

use std::path::Path;

#[path = "../../examples/page_of_results.rs"]
#[allow(dead_code)] // It asks for the names of files.
mod page_of_results;

#[test]
fn a_program_draws_a_page() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema-1.json");
    let mut page = Vec::new();
    page_of_results::draw(&[results.clone(), results], &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "{}", &page[..100]);
    assert!(page.contains("kernel-thp") && page.trim_end().ends_with("</html>"));
}
