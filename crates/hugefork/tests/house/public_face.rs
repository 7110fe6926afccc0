//! The public interface of the engine: a program can name each type, tell errors apart, and find an example for each
//! type.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{Module, Sources, crates, engine, is_for_tests};
use syn::visit::{self, Visit};

/// The public interface of a crate.
struct Face {
    sources: Sources,
    /// The names that `lib.rs` re-exports, and whether that line has an example. For a re-exported module, all names in
    /// it.
    exported: BTreeMap<String, bool>,
    /// Other crates that can be reached through this one.
    crates: BTreeSet<String>,
    /// The names of the seam, which is for one other crate of the workspace and not for programs; the documentation
    /// hides it.
    seam: BTreeSet<String>,
}

/// A type or trait that is declared `pub`.
struct Declared<'a> {
    name: String,
    attributes: &'a [syn::Attribute],
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

fn declared(file: &syn::File) -> impl Iterator<Item = Declared<'_>> {
    file.items.iter().filter_map(|item| {
        let (visibility, name, attributes) = match item {
            syn::Item::Struct(item) => (&item.vis, &item.ident, &item.attrs),
            syn::Item::Enum(item) => (&item.vis, &item.ident, &item.attrs),
            syn::Item::Trait(item) => (&item.vis, &item.ident, &item.attrs),
            syn::Item::Union(item) => (&item.vis, &item.ident, &item.attrs),
            syn::Item::Type(item) => (&item.vis, &item.ident, &item.attrs),
            _ => return None,
        };
        is_public(visibility).then(|| Declared { name: name.to_string(), attributes })
    })
}

/// Adds the last names of `tree`, each with its path.
fn leaves(before: &[String], tree: &syn::UseTree, to: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => leaves(&with(&path.ident), &path.tree, to),
        syn::UseTree::Name(name) => to.push(with(&name.ident)),
        syn::UseTree::Rename(rename) => to.push(with(&rename.ident)),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(before, tree, to)),
        syn::UseTree::Glob(_) => panic!("what is public is listed by name"),
    }
}

/// The names that a module offers.
fn names_of(file: &syn::File) -> BTreeSet<String> {
    let mut paths = Vec::new();
    for item in &file.items {
        if let syn::Item::Use(item) = item
            && is_public(&item.vis)
        {
            leaves(&[], &item.tree, &mut paths);
        }
    }
    let used = paths.into_iter().filter_map(|path| path.last().cloned());
    declared(file).map(|item| item.name).chain(used).collect()
}

impl Face {
    fn of(sources: Sources) -> Face {
        let (mut exported, mut crates) = (BTreeMap::new(), BTreeSet::new());
        let mut modules: Vec<Module> = vec![Vec::new()];
        while let Some(module) = modules.pop() {
            let file = &sources.files[&module];
            if !module.is_empty() {
                exported.extend(declared(file).map(|item| (item.name, false)));
            }
            for item in &file.items {
                let syn::Item::Use(item) = item else { continue };
                if !is_public(&item.vis) {
                    continue;
                }
                let mut paths = Vec::new();
                leaves(&[], &item.tree, &mut paths);
                for path in paths {
                    match path.as_slice() {
                        [name] => _ = crates.insert(name.clone()),
                        path if sources.files.contains_key(path) => modules.push(path.to_vec()),
                        path => _ = exported.insert(path[path.len() - 1].clone(), has_example(&item.attrs)),
                    }
                }
            }
        }
        let seam = sources.files.get(&vec!["seam".to_owned()]).map(names_of).unwrap_or_default();
        Face { sources, exported, crates, seam }
    }
}

#[test]
fn every_public_type_can_be_named_from_the_root() {
    let face = Face::of(engine());
    let hidden: Vec<String> = face
        .sources
        .files
        .iter()
        .flat_map(|(module, file)| declared(file).map(move |item| (module, item.name)))
        .filter(|(_, name)| !face.exported.contains_key(name) && !face.seam.contains(name))
        .map(|(module, name)| format!("{}::{name}", module.join("::")))
        .collect();
    assert_eq!(hidden, Vec::<String>::new(), "these are `pub`, and nobody can name them");
}

/// The types in the signatures of public functions, fields and associated types.
#[derive(Default)]
struct Signatures {
    named: BTreeSet<String>,
    /// Whether the visit is inside an item that is visible from outside.
    is_seen: bool,
}

impl Signatures {
    fn see(&mut self, look: impl FnOnce(&mut Signatures)) {
        let before = std::mem::replace(&mut self.is_seen, true);
        look(self);
        self.is_seen = before;
    }
}

impl<'ast> Visit<'ast> for Signatures {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_public(&item.vis) {
            self.see(|this| this.visit_signature(&item.sig));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_public(&item.vis) {
            self.see(|this| this.visit_signature(&item.sig));
        }
    }

    fn visit_impl_item_type(&mut self, item: &'ast syn::ImplItemType) {
        self.see(|this| this.visit_type(&item.ty));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if is_public(&item.vis) {
            self.see(|this| visit::visit_item_trait(this, item));
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if is_public(&item.vis) {
            self.see(|this| item.variants.iter().for_each(|variant| visit::visit_fields(this, &variant.fields)));
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if self.is_seen || is_public(&field.vis) {
            self.see(|this| this.visit_type(&field.ty));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if self.is_seen {
            self.named.extend(path.segments.iter().map(|segment| segment.ident.to_string()));
        }
        visit::visit_path(self, path);
    }
}

#[test]
fn every_type_in_a_public_signature_can_be_named() {
    let face = Face::of(engine());
    let kernels = Sources::of(&crates().join("hugefork-kernels/src"));
    let of_kernels: BTreeSet<String> = kernels.files.values().flat_map(declared).map(|item| item.name).collect();
    let own: BTreeSet<String> = face.sources.files.values().flat_map(all_types).collect();
    let mut found = 0;
    for (module, file) in
        face.sources.files.iter().filter(|(module, _)| module.first().is_some_and(|room| room == "api"))
    {
        let mut signatures = Signatures::default();
        signatures.visit_file(file);
        for name in signatures.named {
            found += usize::from(face.exported.contains_key(&name));
            let is_of_kernels = !own.contains(&name) && of_kernels.contains(&name);
            assert!(
                !is_of_kernels || face.crates.contains("hugefork_kernels"),
                "{module:?} shows {name} of another crate"
            );
            assert!(!own.contains(&name) || face.exported.contains_key(&name), "{module:?} shows {name}");
        }
    }
    assert!(found > 30, "{found}: does this look at signatures at all?");
}

/// The types of a file, `pub` or not.
fn all_types(file: &syn::File) -> Vec<String> {
    let name = |item: &syn::Item| match item {
        syn::Item::Struct(item) => Some(item.ident.to_string()),
        syn::Item::Enum(item) => Some(item.ident.to_string()),
        syn::Item::Trait(item) => Some(item.ident.to_string()),
        _ => None,
    };
    file.items.iter().filter_map(name).collect()
}

fn has_example(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).any(|attribute| {
        let text = attribute.meta.require_name_value().map(|pair| &pair.value);
        matches!(text, Ok(syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })) if text.value().trim() == "```")
    })
}

#[test]
fn every_public_type_has_an_example_that_runs() {
    let face = Face::of(engine());
    let without: Vec<String> = face
        .sources
        .files
        .values()
        .flat_map(declared)
        .filter(|item| !face.seam.contains(&item.name))
        .filter(|item| !has_example(item.attributes) && face.exported.get(&item.name) != Some(&true))
        .map(|item| item.name)
        .collect();
    assert_eq!(without, Vec::<String>::new(), "these have no example");
}

/// Error types that are text.
#[derive(Default)]
struct Texts(Vec<String>);

impl<'ast> Visit<'ast> for Texts {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if let ("Result", syn::PathArguments::AngleBracketed(of)) =
            (segment.ident.to_string().as_str(), &segment.arguments)
            && of.args.len() == 2
            && matches!(&of.args[1], syn::GenericArgument::Type(of) if is_text(of))
        {
            self.0.push("a Result".to_owned());
        }
        visit::visit_path_segment(self, segment);
    }

    fn visit_impl_item_type(&mut self, item: &'ast syn::ImplItemType) {
        if ["Err", "Error"].contains(&item.ident.to_string().as_str()) && is_text(&item.ty) {
            self.0.push(format!("type {}", item.ident));
        }
    }
}

fn is_text(of: &syn::Type) -> bool {
    match of {
        syn::Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "String"),
        syn::Type::Reference(reference) => {
            matches!(&*reference.elem, syn::Type::Path(path) if path.path.is_ident("str"))
        }
        _ => false,
    }
}

#[test]
fn no_error_is_mere_text() {
    for name in ["hugefork", "hugefork-checkpoint", "hugefork-kernels", "hugefork-linux"] {
        for (module, file) in &Sources::of(&crates().join(name).join("src")).files {
            let mut texts = Texts::default();
            texts.visit_file(file);
            assert_eq!(texts.0, Vec::<String>::new(), "in {name}, {}", module.join("/"));
        }
    }
}

#[test]
fn every_public_error_has_a_code() {
    let face = Face::of(engine());
    let mut with_code = BTreeSet::new();
    for item in face.sources.files.values().flat_map(|file| &file.items) {
        let syn::Item::Impl(item) = item else { continue };
        let has_code =
            item.items.iter().any(|item| matches!(item, syn::ImplItem::Fn(item) if item.sig.ident == "code"));
        if let (true, syn::Type::Path(of)) = (has_code, &*item.self_ty) {
            with_code.insert(of.path.segments.last().unwrap().ident.to_string());
        }
    }
    let errors: BTreeSet<String> = face.exported.keys().filter(|name| name.ends_with("Error")).cloned().collect();
    assert_eq!(with_code, errors);
    assert!(errors.len() >= 6, "{errors:?}");
}

#[test]
fn what_is_hidden_or_has_no_example_is_found() {
    let file = |text: &str| syn::parse_file(text).unwrap();
    let files = [
        ("", "pub use a::{B, inner}; pub use other as name; mod a;"),
        ("a", "/// ```\n/// ```\npub struct B; pub struct C { pub d: D, e: E } pub(crate) struct F;"),
        ("a/inner", "/// Text.\npub enum G { H(I) }\nimpl G { pub fn j() -> Result<K, String> {} fn l(m: M) {} }"),
    ];
    let module = |name: &str| name.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Module>();
    let files = files.into_iter().map(|(name, text)| (module(name), file(text))).collect();
    let face = Face::of(Sources { files });
    assert_eq!(face.exported.keys().collect::<Vec<_>>(), ["B", "G"]);
    assert_eq!(face.crates, BTreeSet::from(["other".to_owned()]));
    let [a, inner] = ["a", "a/inner"].map(|name| &face.sources.files[&module(name)]);
    assert_eq!(
        declared(a).map(|item| (item.name, has_example(item.attributes))).collect::<Vec<_>>(),
        [("B".to_owned(), true), ("C".to_owned(), false)]
    );
    let named = [a, inner].map(|file| {
        let mut signatures = Signatures::default();
        signatures.visit_file(file);
        signatures.named.into_iter().collect::<Vec<_>>().join(" ")
    });
    assert_eq!(named, ["D", "I K Result String"]);
    let mut texts = Texts::default();
    texts.visit_file(inner);
    assert_eq!(texts.0.len(), 1);
}

#[test]
fn the_seam_is_hidden_and_small() {
    let engine = engine();
    let root = &engine.files[&Vec::new()];
    let mut modules =
        root.items.iter().filter_map(|item| if let syn::Item::Mod(item) = item { Some(item) } else { None });
    let seam = modules.find(|item| item.ident == "seam").expect("the root has it");
    let is_hidden = |attribute: &syn::Attribute| {
        attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "hidden")
    };
    assert!(seam.attrs.iter().any(is_hidden), "documentation shows it");
    let names = Face::of(engine).seam;
    assert!(names.len() <= 10, "{names:?} are many: what is more is the engine's own");
}
