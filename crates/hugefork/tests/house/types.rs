//! The types and methods of a crate, as far as the sources tell them.

use std::collections::{BTreeMap, BTreeSet};

use super::sources::{Module, Sources, is_for_tests};

/// A type, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    /// A type of the crate: the file that defines it, and its name there.
    Own(Module, String),
    /// A type of another crate, with its type arguments.
    Foreign(String, Vec<Type>),
    Tuple(Vec<Type>),
    Unknown,
}

/// Foreign types that pass all method calls on to their contents.
const TRANSPARENT: [&str; 10] =
    ["EngineArc", "PinnedBox", "EngineBox", "Box", "Arc", "Rc", "MutexGuard", "Ref", "RefMut", "ManuallyDrop"];

/// Types from which a pattern or `?` can take the contents.
pub(crate) const WRAPPERS: [&str; 2] = ["Option", "Result"];

/// Types with elements.
pub(crate) const LISTS: [&str; 4] = ["EngineVec", "Vec", "slice", "array"];

/// Names that methods of std have too. On a receiver of unknown type, they count as those of std.
const OF_STD: [&str; 28] = [
    "add",
    "all",
    "as_fd",
    "as_mut_ptr",
    "as_ptr",
    "as_str",
    "capacity",
    "clone",
    "contains",
    "count",
    "find",
    "get",
    "is_empty",
    "iter",
    "join",
    "len",
    "lock",
    "map",
    "name",
    "next",
    "push",
    "release",
    "skip",
    "store",
    "sum",
    "take",
    "trim",
    "write",
];

impl Type {
    pub(crate) fn foreign(name: &str, of: Type) -> Type {
        Type::Foreign(name.to_owned(), vec![of])
    }

    /// The contents of a type with one of these names.
    pub(crate) fn inner(&self, names: &[&str]) -> Type {
        match self {
            Type::Foreign(name, of) if names.contains(&name.as_str()) => of.first().cloned().unwrap_or(Type::Unknown),
            _ => Type::Unknown,
        }
    }
}

/// A declared method.
pub(crate) struct Method {
    pub(crate) module: Module,
    /// Its type: the file that defines the type, and the type's name there.
    of: (Module, String),
    /// Whether it is in an `impl` of a trait.
    is_of_trait: bool,
    /// The number of its arguments, without the receiver.
    arguments: usize,
    pub(crate) returns: Type,
}

/// All types and methods of a crate.
pub(crate) struct Methods<'a> {
    pub(crate) sources: &'a Sources,
    /// For each file, the names that it has imported, with their paths.
    imports: BTreeMap<&'a Module, BTreeMap<String, Vec<String>>>,
    defined: BTreeMap<(Module, String), &'a syn::Item>,
    pub(crate) fields: BTreeMap<(Module, String, String), Type>,
    /// The methods of all types, by name.
    methods: BTreeMap<String, Vec<Method>>,
    pub(crate) functions: BTreeMap<(Module, String), Type>,
}

impl<'a> Methods<'a> {
    pub(crate) fn of(sources: &'a Sources) -> Methods<'a> {
        let mut methods = Methods {
            sources,
            imports: BTreeMap::new(),
            defined: BTreeMap::new(),
            fields: BTreeMap::new(),
            methods: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        for (module, file) in &sources.files {
            let mut names = BTreeMap::new();
            for item in file.items.iter().filter(|item| !is_test(item)) {
                if let syn::Item::Use(item) = item {
                    names_in(&[], &item.tree, &mut names);
                }
                let name = match item {
                    syn::Item::Struct(item) => &item.ident,
                    syn::Item::Enum(item) => &item.ident,
                    syn::Item::Trait(item) => &item.ident,
                    syn::Item::Type(item) => &item.ident,
                    _ => continue,
                };
                methods.defined.insert((module.clone(), name.to_string()), item);
            }
            methods.imports.insert(module, names);
        }
        for (module, file) in &sources.files {
            file.items.iter().filter(|item| !is_test(item)).for_each(|item| methods.declare(module, item));
        }
        methods
    }

    fn declare(&mut self, module: &Module, item: &syn::Item) {
        match item {
            syn::Item::Struct(item) => {
                for (nth, field) in item.fields.iter().enumerate() {
                    let name = field.ident.as_ref().map_or(nth.to_string(), ToString::to_string);
                    let of = self.type_of(module, &field.ty, None);
                    self.fields.insert((module.clone(), item.ident.to_string(), name), of);
                }
            }
            syn::Item::Impl(item) if !is_for_tests(&item.attrs) => {
                let syn::Type::Path(path) = &*item.self_ty else { return };
                let Some((at, of)) = self.named(module, &names_of(&path.path)) else { return };
                let own = Type::Own(at.clone(), of.clone());
                for one in &item.items {
                    if let syn::ImplItem::Fn(function) = one {
                        self.add(module, (&at, &of), item.trait_.is_some(), &function.sig, Some(&own));
                    }
                }
            }
            syn::Item::Trait(item) => {
                for one in &item.items {
                    if let syn::TraitItem::Fn(function) = one {
                        self.add(module, (module, &item.ident.to_string()), false, &function.sig, None);
                    }
                }
            }
            syn::Item::Fn(function) => {
                let returns = self.returned(module, &function.sig, None);
                self.functions.insert((module.clone(), function.sig.ident.to_string()), returns);
            }
            _ => {}
        }
    }

    fn add(
        &mut self,
        module: &Module,
        of: (&Module, &String),
        is_of_trait: bool,
        signature: &syn::Signature,
        own: Option<&Type>,
    ) {
        let is_argument = |input: &&syn::FnArg| matches!(input, syn::FnArg::Typed(_));
        let method = Method {
            module: module.clone(),
            of: (of.0.clone(), of.1.clone()),
            is_of_trait,
            arguments: signature.inputs.iter().filter(is_argument).count(),
            returns: self.returned(module, signature, own),
        };
        self.methods.entry(signature.ident.to_string()).or_default().push(method);
    }

    fn returned(&self, module: &Module, signature: &syn::Signature, own: Option<&Type>) -> Type {
        match &signature.output {
            syn::ReturnType::Default => Type::Tuple(Vec::new()),
            syn::ReturnType::Type(_, of) => self.type_of(module, of, own),
        }
    }

    /// The type with this name in `module`.
    pub(crate) fn named(&self, module: &Module, path: &[String]) -> Option<(Module, String)> {
        let (name, before) = path.split_last()?;
        let mut at = match before {
            [] => module.clone(),
            before => self.sources.target(module, before).unwrap_or_else(|| module.clone()),
        };
        let mut name = name.clone();
        // Follows re-exports from file to file.
        for _ in 0..8 {
            if self.defined.contains_key(&(at.clone(), name.clone())) {
                return Some((at, name));
            }
            let path = self.imports.get(&at)?.get(&name)?;
            name = path.last()?.clone();
            at = self.sources.target(&at, path).unwrap_or(at);
        }
        None
    }

    /// The type that is written as `of` in `module`, where `own` is `Self`.
    pub(crate) fn type_of(&self, module: &Module, of: &syn::Type, own: Option<&Type>) -> Type {
        match of {
            syn::Type::Reference(to) => self.type_of(module, &to.elem, own),
            syn::Type::Paren(inner) => self.type_of(module, &inner.elem, own),
            syn::Type::Slice(list) => Type::foreign("slice", self.type_of(module, &list.elem, own)),
            syn::Type::Array(list) => Type::foreign("array", self.type_of(module, &list.elem, own)),
            syn::Type::Tuple(parts) => {
                Type::Tuple(parts.elems.iter().map(|part| self.type_of(module, part, own)).collect())
            }
            syn::Type::TraitObject(object) => self.bound(module, object.bounds.first()),
            syn::Type::ImplTrait(some) => self.bound(module, some.bounds.first()),
            syn::Type::Path(path) => self.path_type(module, &path.path, own),
            _ => Type::Unknown,
        }
    }

    fn bound(&self, module: &Module, bound: Option<&syn::TypeParamBound>) -> Type {
        match bound {
            Some(syn::TypeParamBound::Trait(bound)) => match self.path_type(module, &bound.path, None) {
                // Methods of a foreign trait are in none of our files.
                Type::Foreign(..) => Type::Unknown,
                of => of,
            },
            _ => Type::Unknown,
        }
    }

    pub(crate) fn path_type(&self, module: &Module, path: &syn::Path, own: Option<&Type>) -> Type {
        let names = names_of(path);
        if names == ["Self"] {
            return own.cloned().unwrap_or(Type::Unknown);
        }
        let last = path.segments.last().expect("a path has a name");
        let within: Vec<Type> = match &last.arguments {
            syn::PathArguments::AngleBracketed(brackets) => brackets
                .args
                .iter()
                .filter_map(|one| match one {
                    syn::GenericArgument::Type(of) => Some(self.type_of(module, of, own)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        let name = last.ident.to_string();
        if TRANSPARENT.contains(&name.as_str()) {
            return within.into_iter().next().unwrap_or(Type::Unknown);
        }
        if LISTS.contains(&name.as_str()) {
            return Type::Foreign(name, within);
        }
        match self.named(module, &names) {
            Some((at, name)) => match self.defined[&(at.clone(), name.clone())] {
                syn::Item::Type(alias) => self.type_of(&at, &alias.ty, None),
                _ => Type::Own(at, name),
            },
            None => Type::Foreign(name, within),
        }
    }

    /// The methods that a call of `name` on a value of type `of` may mean.
    pub(crate) fn called(&self, of: &Type, name: &str, arguments: usize) -> Vec<&Method> {
        let named = || self.methods.get(name).into_iter().flatten();
        match of {
            Type::Own(at, of) => {
                let found = || named().filter(|method| method.of.0 == *at && method.of.1 == *of);
                // A method of the type itself goes before one of a trait.
                let has_own = found().any(|method| !method.is_of_trait);
                found().filter(|method| method.is_of_trait != has_own).collect()
            }
            Type::Foreign(..) | Type::Tuple(_) => Vec::new(),
            Type::Unknown if OF_STD.contains(&name) => Vec::new(),
            Type::Unknown => named().filter(|method| method.arguments == arguments).collect(),
        }
    }

    /// For each type, the files with methods of its own, which come from no trait.
    pub(crate) fn homes(&self) -> BTreeMap<&(Module, String), BTreeSet<&Module>> {
        let mut homes: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for method in self.methods.values().flatten().filter(|method| !method.is_of_trait) {
            homes.entry(&method.of).or_default().insert(&method.module);
        }
        homes
    }
}

pub(crate) fn is_test(item: &syn::Item) -> bool {
    match item {
        syn::Item::Mod(item) => is_for_tests(&item.attrs),
        syn::Item::Impl(item) => is_for_tests(&item.attrs),
        syn::Item::Use(item) => is_for_tests(&item.attrs),
        syn::Item::Fn(item) => is_for_tests(&item.attrs),
        syn::Item::Struct(item) => is_for_tests(&item.attrs),
        _ => false,
    }
}

pub(crate) fn names_of(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// The names that a `use` imports, with their paths.
fn names_in(before: &[String], tree: &syn::UseTree, names: &mut BTreeMap<String, Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => names_in(&with(&path.ident), &path.tree, names),
        syn::UseTree::Name(name) if name.ident == "self" => {
            before.last().map(|last| names.insert(last.clone(), before.to_vec()));
        }
        syn::UseTree::Name(name) => _ = names.insert(name.ident.to_string(), with(&name.ident)),
        syn::UseTree::Rename(rename) => _ = names.insert(rename.rename.to_string(), with(&rename.ident)),
        syn::UseTree::Glob(_) => {}
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| names_in(before, tree, names)),
    }
}
