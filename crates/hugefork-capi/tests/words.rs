//! Messages for C programs contain only names that exist in C.

mod common;
#[path = "../../hugefork/tests/common/messages.rs"]
mod messages;
#[path = "../../hugefork/tests/common/sources.rs"]
mod sources;
#[path = "../src/words.rs"]
mod words;

use messages::{messages, names};
use words::in_words_of_c;

/// An error that no function of C can return.
const OF_VIEWS: &str = "Region::writers_of";

#[test]
fn every_message_names_items_of_the_header() {
    let header = common::header();
    for message in messages().iter().filter(|message| !message.contains(OF_VIEWS)) {
        let told = in_words_of_c(message).to_string();
        for name in names(&told) {
            assert!(name == "_at" || header.contains(name), "`{name}` is nothing in C: {told}");
        }
    }
}
