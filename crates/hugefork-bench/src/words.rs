//! Translates texts of the engine into the words of the command, whose users call no functions. `tests/words.rs`
//! checks all these texts.

/// The engine's words, and the command's words for the same.
const WORDS: [(&str, &str); 17] = [
    ("take Backing::ShmemHuge", "take huge pages of shmem"),
    (", or build the pool with Commit::Upfront", " or take a smaller --size"),
    (" (Region::reset_to)", ""),
    ("make it with Reserve::Full", "take a smaller --size"),
    ("take Reserve::None", "take a smaller --size"),
    (", or raise max_cow_bytes", ""),
    ("the parent's max_cow_bytes were used up", "its limit was used up"),
    ("max_cow_bytes", "the limit"),
    ("make the Operations with more patience", "wait longer"),
    ("make one Operations", "make one operation"),
    ("the text as `Extents` prints it", "the text as it was printed"),
    ("the one that `Export` gives", "the one that was exported"),
    ("its `Export`", "the export"),
    (", or take an `export_copy`", ", or export a copy"),
    ("take export_copy", "export a copy"),
    ("with exports(true)", "so that it exports"),
    ("with children(Children::Inherit)", "so that children inherit it"),
];

/// An error message of the engine, in the words of the command.
pub(crate) fn in_words_of_the_command(error: &dyn std::error::Error) -> String {
    WORDS.iter().fold(error.to_string(), |text, (of_engine, of_command)| text.replace(of_engine, of_command))
}
