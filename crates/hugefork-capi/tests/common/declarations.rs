//! The declarations in the header, item by item.

use std::collections::BTreeMap;

use crate::common::header;

/// Functions and structs by name, as C has them, with one space between words; constants with their numbers.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Declarations {
    pub(crate) functions: BTreeMap<String, String>,
    pub(crate) structs: BTreeMap<String, String>,
    pub(crate) constants: BTreeMap<String, i64>,
}

/// Text with one space between words, and none beside punctuation.
pub(crate) fn squeezed(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut text = words.join(" ");
    for mark in ["(", ")", "*", ",", ";", "{", "}"] {
        text = text.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    text
}

/// The header without comments and lines for the preprocessor.
fn plain(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    text.push_str(rest);
    // Removes the braces that only C++ sees.
    let text = text.replace("extern \"C\" {\n#endif", "#endif").replace("#ifdef __cplusplus\n}", "");
    let text = text.replace("\\\n", " ");
    text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

impl Declarations {
    pub(crate) fn of_header() -> Declarations {
        Declarations::read(&header())
    }

    /// Parses a header. An unknown construct is an error, so that all items are compared.
    pub(crate) fn read(header: &str) -> Declarations {
        let mut found = Declarations::default();
        let text = plain(header);
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A declaration ends at the first semicolon outside of braces.
            let mut depth = 0;
            let is_end = |letter: char| {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                letter == ';' && depth == 0
            };
            let end = rest.find(is_end).unwrap_or_else(|| panic!("no end: {rest}"));
            found.add(&squeezed(&rest[..end]));
            rest = rest[end + 1..].trim_start();
        }
        found
    }

    fn add(&mut self, text: &str) {
        if let Some(body) = text.strip_prefix("enum ") {
            let (_, list) = body.trim_end_matches('}').split_once('{').expect("an enum has braces");
            for constant in list.split(',').filter(|one| !one.trim().is_empty()) {
                let (name, number) = constant.split_once('=').expect("every constant has its number");
                self.constants.insert(name.trim().to_owned(), number.trim().parse().unwrap());
            }
        } else if let Some(body) = text.strip_prefix("typedef struct ") {
            match body.split_once('{') {
                Some((name, fields)) => {
                    let fields = fields.strip_suffix(&format!("}}{name}")).expect("a struct is named twice");
                    self.structs.insert(name.to_owned(), fields.to_owned());
                }
                None => {
                    let (one, other) = body.split_once(' ').expect("a handle is named twice");
                    assert_eq!(one, other);
                    self.structs.insert(one.to_owned(), "opaque".to_owned());
                }
            }
        } else {
            let (before, _) = text.split_once('(').unwrap_or_else(|| panic!("what is this? {text}"));
            let name = before.rsplit([' ', '*']).next().unwrap();
            self.functions.insert(name.to_owned(), text.to_owned());
        }
    }
}
