//! What users of the command are told names no function and no type.

#[path = "../../hugefork/tests/common/messages.rs"]
mod messages;
#[path = "../../hugefork/tests/common/sources.rs"]
mod sources;
#[path = "../src/words.rs"]
mod words;

use messages::{messages, names};
use words::in_words_of_the_command;

/// The bench has no views and no transfers.
const NOT_OF_BENCH: [&str; 2] = ["Region::writers_of", "without `_at`"];

#[test]
fn every_message_names_nothing_that_a_program_would_call() {
    for message in messages().iter().filter(|message| !NOT_OF_BENCH.iter().any(|other| message.contains(other))) {
        let error: Box<dyn std::error::Error> = message.as_str().into();
        let told = in_words_of_the_command(&*error);
        let foreign: Vec<_> = names(&told).collect();
        assert!(foreign.is_empty(), "{foreign:?}: {told}");
    }
}

/// The sources of the commands, where texts are of their own.
#[test]
fn no_text_of_the_commands_has_a_path_of_rust() {
    for folder in ["hugefork-cli/src", "hugefork-bench/src", "hugefork-preload/src"] {
        let found = sources::Sources::of(&sources::crates().join(folder));
        // The table of words has the engine's.
        for (module, file) in found.files.iter().filter(|(module, _)| *module != &["words"]) {
            for text in messages::texts(file) {
                let has_path = names(&text).any(|name| name.contains("::"));
                assert!(!has_path, "{folder}/{}: {text}", module.join("/"));
            }
        }
    }
}
