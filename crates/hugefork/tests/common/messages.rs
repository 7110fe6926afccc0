//! Collects the engine's messages from its sources, for tests that compare the messages of other interfaces with them.

use syn::visit::{self, Visit};

use crate::sources::{engine, is_for_tests};

/// Files whose string literals are all parts of messages.
const ALL_OF: [&str; 3] = ["types/error", "types/extents", "fault/report"];

/// Words that look like names of a programming interface, but are names of the kernel's or units.
const NO_NAMES: [&str; 5] = ["Linux", "shmem_enabled", "KiB", "MiB", "GiB"];

/// The texts of all errors of the engine, and of the lines of its fault handler.
pub(crate) fn messages() -> Vec<String> {
    let mut texts = Texts::default();
    for (module, file) in &engine().files {
        texts.is_all_of_it = ALL_OF.contains(&module.join("/").as_str());
        texts.visit_file(file);
    }
    assert!(texts.found.len() > 60, "they are looked for where they were");
    texts.found
}

/// All string literals of a file, except for those in attributes.
#[allow(dead_code)] // Only some test binaries read files of their own.
pub(crate) fn texts(file: &syn::File) -> Vec<String> {
    let mut texts = Texts { is_all_of_it: true, ..Texts::default() };
    texts.visit_file(file);
    texts.found
}

/// The names in a message that belong to a programming interface: types, functions, methods, options. A name in
/// capitals counts as the kernel's, unless it begins with `HF_`.
pub(crate) fn names(message: &str) -> impl Iterator<Item = &str> {
    // Text in braces is a placeholder.
    let said = message.split('{').map(|part| part.rsplit('}').next().unwrap_or(part));
    let words = said.flat_map(|part| part.split(|letter: char| !letter.is_alphanumeric() && !":_./".contains(letter)));
    words.map(|word| word.trim_matches([':', '.'])).filter(|word| {
        let is_type = word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase);
        let is_of_kernel = word.starts_with("vm.") || word.starts_with('/') || NO_NAMES.contains(word);
        let is_in_capitals = !word.contains(char::is_lowercase) && !word.starts_with("HF_");
        (is_type || word.contains("::") || word.contains('_')) && !is_of_kernel && !is_in_capitals
    })
}

#[derive(Default)]
struct Texts {
    found: Vec<String>,
    is_all_of_it: bool,
}

impl Texts {
    /// Adds the string literals among the tokens of a macro or an attribute.
    fn read(&mut self, tokens: impl IntoIterator<Item: ToString>) {
        let texts = tokens.into_iter().filter_map(|token| syn::parse_str::<syn::LitStr>(&token.to_string()).ok());
        self.found.extend(texts.map(|text| text.value()));
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.read(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, made: &'ast syn::Macro) {
        if self.is_all_of_it {
            self.read(made.tokens.clone());
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        if self.is_all_of_it {
            self.found.push(text.value());
        }
    }
}
