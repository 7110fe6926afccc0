//! Parses the sources of a crate file by file, for tests of the sources themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One file of a crate, by the path of its module.
pub(crate) type Module = Vec<String>;

/// The files of a crate, without its tests.
pub(crate) struct Sources {
    pub(crate) files: BTreeMap<Module, syn::File>,
}

impl Sources {
    pub(crate) fn of(source: &Path) -> Sources {
        let mut sources = Sources { files: BTreeMap::new() };
        let root = ["lib.rs", "main.rs"].iter().map(|name| source.join(name)).find(|path| path.exists()).unwrap();
        sources.read(&root, source, Vec::new());
        sources
    }

    /// Parses a file and the files of its modules, which lie in `folder`.
    fn read(&mut self, path: &Path, folder: &Path, module: Module) {
        let text = fs::read_to_string(path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for item in &file.items {
            let syn::Item::Mod(item) = item else { continue };
            if item.content.is_some() || is_for_tests(&item.attrs) {
                continue;
            }
            let name = item.ident.to_string();
            let below = folder.join(&name);
            let path = [below.with_extension("rs"), below.join("mod.rs")].into_iter().find(|path| path.exists());
            let path = path.unwrap_or_else(|| panic!("no file for module {name} in {}", folder.display()));
            self.read(&path, &below, [module.as_slice(), &[name]].concat());
        }
        self.files.insert(module, file);
    }
}

pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let of_model = "any (test , fuzzing , feature = \"model\")";
        let kinds = ["test", "doctest", "fuzzing", "any (test , fuzzing)", of_model];
        let is_test = |list: &syn::MetaList| kinds.contains(&list.tokens.to_string().as_str());
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(is_test)
    })
}

pub(crate) fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn engine() -> Sources {
    Sources::of(&crates().join("hugefork/src"))
}
