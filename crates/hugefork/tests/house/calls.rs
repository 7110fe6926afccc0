//! Who calls which method. A method belongs to the file that it stands in, whatever its type; so calls may go where no
//! import does.
//!
//! What a call means depends on the type of its receiver. That is worked out from what is written: the types of fields
//! and parameters, and what methods return. Where this does not tell, it may be any method of that name with so many
//! arguments.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::sources::{Module, Sources, is_for_tests};

/// A call from a file to a method in another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) from: Module,
    /// Where the method may stand: in one of these files.
    pub(crate) to: Vec<Module>,
    pub(crate) method: String,
}

/// What is known of a type.
#[derive(Clone, Debug, PartialEq)]
enum Type {
    /// Of the crate: the file that defines it, and its name there.
    Own(Module, String),
    /// Of others, with what stands in its brackets.
    Foreign(String, Vec<Type>),
    Tuple(Vec<Type>),
    Unknown,
}

/// What [`Type::Foreign`] is called that is as good as what is in it: it hands all calls on.
const TRANSPARENT: [&str; 10] =
    ["Counted", "Fixed", "Boxed", "Box", "Arc", "Rc", "MutexGuard", "Ref", "RefMut", "ManuallyDrop"];

/// What may be taken out of its brackets, by a pattern or `?`.
const WRAPPERS: [&str; 2] = ["Option", "Result"];

/// What has elements.
const LISTS: [&str; 4] = ["List", "Vec", "slice", "array"];

/// What methods of std are called, too. On a receiver of unknown type it is those.
const OF_STD: [&str; 26] = [
    "add",
    "all",
    "as_fd",
    "as_mut_ptr",
    "as_ptr",
    "as_str",
    "capacity",
    "clone",
    "contains",
    "find",
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
    fn foreign(name: &str, of: Type) -> Type {
        Type::Foreign(name.to_owned(), vec![of])
    }

    /// What is in it, if it is one of these.
    fn inner(&self, names: &[&str]) -> Type {
        match self {
            Type::Foreign(name, of) if names.contains(&name.as_str()) => of.first().cloned().unwrap_or(Type::Unknown),
            _ => Type::Unknown,
        }
    }
}

/// A method, as it is declared.
struct Method {
    module: Module,
    /// The file that defines its type, and what that is called there.
    of: (Module, String),
    /// Whether it stands in an `impl` of a trait.
    is_of_trait: bool,
    /// How many arguments it has beside its receiver.
    arguments: usize,
    returns: Type,
}

/// All types and methods of a crate.
pub(crate) struct Methods<'a> {
    sources: &'a Sources,
    /// What each file calls the types of others.
    imports: BTreeMap<&'a Module, BTreeMap<String, Vec<String>>>,
    defined: BTreeMap<(Module, String), &'a syn::Item>,
    fields: BTreeMap<(Module, String, String), Type>,
    /// By the name: those of all types.
    methods: BTreeMap<String, Vec<Method>>,
    functions: BTreeMap<(Module, String), Type>,
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

    /// The type that `module` calls so.
    fn named(&self, module: &Module, path: &[String]) -> Option<(Module, String)> {
        let (name, before) = path.split_last()?;
        let mut at = match before {
            [] => module.clone(),
            before => self.sources.target(module, before).unwrap_or_else(|| module.clone()),
        };
        let mut name = name.clone();
        // From file to file, as it is handed on.
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

    /// What a type that is written in `module` is, where `own` is `Self`.
    fn type_of(&self, module: &Module, of: &syn::Type, own: Option<&Type>) -> Type {
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
                // What a foreign trait is asked for is in none of our rooms.
                Type::Foreign(..) => Type::Unknown,
                of => of,
            },
            _ => Type::Unknown,
        }
    }

    fn path_type(&self, module: &Module, path: &syn::Path, own: Option<&Type>) -> Type {
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

    /// What may be called where `name` is called on a value of type `of`.
    fn called(&self, of: &Type, name: &str, arguments: usize) -> Vec<&Method> {
        let named = || self.methods.get(name).into_iter().flatten();
        match of {
            Type::Own(at, of) => {
                let found = || named().filter(|method| method.of.0 == *at && method.of.1 == *of);
                // What a type has by itself goes before what a trait gives it.
                let has_own = found().any(|method| !method.is_of_trait);
                found().filter(|method| method.is_of_trait != has_own).collect()
            }
            Type::Foreign(..) | Type::Tuple(_) => Vec::new(),
            Type::Unknown if OF_STD.contains(&name) => Vec::new(),
            Type::Unknown => named().filter(|method| method.arguments == arguments).collect(),
        }
    }

    /// The files in which each type has methods of its own, which no trait gives it.
    pub(crate) fn homes(&self) -> BTreeMap<&(Module, String), BTreeSet<&Module>> {
        let mut homes: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for method in self.methods.values().flatten().filter(|method| !method.is_of_trait) {
            homes.entry(&method.of).or_default().insert(&method.module);
        }
        homes
    }

    /// All calls from one file to methods in another.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for (module, file) in &self.sources.files {
            let mut finder =
                Finder { methods: self, module, own: None, known: vec![BTreeMap::new()], calls: Vec::new() };
            file.items.iter().filter(|item| !is_test(item)).for_each(|item| finder.visit_item(item));
            calls.append(&mut finder.calls);
        }
        calls.sort();
        calls.dedup();
        calls
    }
}

fn is_test(item: &syn::Item) -> bool {
    match item {
        syn::Item::Mod(item) => is_for_tests(&item.attrs),
        syn::Item::Impl(item) => is_for_tests(&item.attrs),
        syn::Item::Use(item) => is_for_tests(&item.attrs),
        syn::Item::Fn(item) => is_for_tests(&item.attrs),
        syn::Item::Struct(item) => is_for_tests(&item.attrs),
        _ => false,
    }
}

fn names_of(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// The names that a `use` brings, and the paths that they stand for.
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

/// Goes through a file, with what is known of each variable.
struct Finder<'m, 'a> {
    methods: &'m Methods<'a>,
    module: &'m Module,
    own: Option<Type>,
    known: Vec<BTreeMap<String, Type>>,
    calls: Vec<Call>,
}

impl Finder<'_, '_> {
    fn note(&mut self, of: &Type, name: &str, arguments: usize) {
        let methods = self.methods.called(of, name, arguments);
        let to: Vec<Module> = methods.iter().map(|method| method.module.clone()).collect();
        if !to.is_empty() && !to.contains(self.module) {
            let method = match of {
                Type::Own(_, of) => format!("{of}::{name}"),
                Type::Foreign(..) | Type::Tuple(_) | Type::Unknown => name.to_owned(),
            };
            self.calls.push(Call { from: self.module.clone(), to, method });
        }
    }

    fn written(&self, of: &syn::Type) -> Type {
        self.methods.type_of(self.module, of, self.own.as_ref())
    }

    fn within(&mut self, look: impl FnOnce(&mut Self)) {
        self.known.push(BTreeMap::new());
        look(self);
        self.known.pop();
    }

    fn bind(&mut self, name: &syn::Ident, of: Type) {
        self.known.last_mut().expect("there is a scope").insert(name.to_string(), of);
    }

    /// Notes what a pattern names, that is matched with `of`.
    fn take_apart(&mut self, pattern: &syn::Pat, of: &Type) {
        match pattern {
            syn::Pat::Ident(name) => self.bind(&name.ident, of.clone()),
            syn::Pat::Type(typed) => {
                let of = self.written(&typed.ty);
                self.take_apart(&typed.pat, &of);
            }
            syn::Pat::Reference(to) => self.take_apart(&to.pat, of),
            syn::Pat::Paren(inner) => self.take_apart(&inner.pat, of),
            syn::Pat::Or(any) => any.cases.iter().for_each(|one| self.take_apart(one, of)),
            syn::Pat::Tuple(parts) => {
                for (nth, part) in parts.elems.iter().enumerate() {
                    let of = match of {
                        Type::Tuple(types) => types.get(nth).cloned().unwrap_or(Type::Unknown),
                        _ => Type::Unknown,
                    };
                    self.take_apart(part, &of);
                }
            }
            syn::Pat::Slice(parts) => {
                parts.elems.iter().for_each(|part| self.take_apart(part, &of.inner(&LISTS)));
            }
            syn::Pat::TupleStruct(one) => {
                let names = names_of(&one.path);
                let inner = match names.last().map(String::as_str) {
                    Some("Some" | "Ok") => of.inner(&WRAPPERS),
                    _ => Type::Unknown,
                };
                let is_enum = names.len() > 1;
                for (nth, part) in one.elems.iter().enumerate() {
                    let field = match self.methods.named(self.module, &names) {
                        Some((at, name)) if !is_enum => self.methods.fields.get(&(at, name, nth.to_string())).cloned(),
                        _ => None,
                    };
                    self.take_apart(part, &field.unwrap_or_else(|| inner.clone()));
                }
            }
            syn::Pat::Struct(one) => {
                let named = self.methods.path_type(self.module, &one.path, self.own.as_ref());
                for part in &one.fields {
                    let field = self.field(&named, &part.member);
                    self.take_apart(&part.pat, &field);
                }
            }
            _ => {}
        }
    }

    fn field(&self, of: &Type, member: &syn::Member) -> Type {
        let name = match member {
            syn::Member::Named(name) => name.to_string(),
            syn::Member::Unnamed(nth) => nth.index.to_string(),
        };
        match of {
            Type::Own(at, of) => {
                let field = self.methods.fields.get(&(at.clone(), of.clone(), name));
                field.cloned().unwrap_or(Type::Unknown)
            }
            Type::Tuple(types) => {
                name.parse().ok().and_then(|nth: usize| types.get(nth)).cloned().unwrap_or(Type::Unknown)
            }
            Type::Foreign(..) | Type::Unknown => Type::Unknown,
        }
    }

    /// The type of an expression, as far as it is known.
    fn infer(&self, expression: &syn::Expr) -> Type {
        match expression {
            syn::Expr::Path(path) => {
                let names = names_of(&path.path);
                match names.as_slice() {
                    [name] if name == "self" => self.own.clone().unwrap_or(Type::Unknown),
                    [name] => {
                        self.known.iter().rev().find_map(|known| known.get(name)).cloned().unwrap_or(Type::Unknown)
                    }
                    _ => Type::Unknown,
                }
            }
            syn::Expr::Reference(to) => self.infer(&to.expr),
            syn::Expr::Paren(inner) => self.infer(&inner.expr),
            syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Deref(_), expr, .. }) => self.infer(expr),
            syn::Expr::Try(tried) => self.infer(&tried.expr).inner(&WRAPPERS),
            syn::Expr::Field(field) => self.field(&self.infer(&field.base), &field.member),
            syn::Expr::Index(index) => match &*index.index {
                syn::Expr::Range(_) => self.infer(&index.expr),
                _ => self.infer(&index.expr).inner(&LISTS),
            },
            syn::Expr::Tuple(parts) => Type::Tuple(parts.elems.iter().map(|part| self.infer(part)).collect()),
            syn::Expr::Struct(made) => self.methods.path_type(self.module, &made.path, self.own.as_ref()),
            syn::Expr::Cast(cast) => self.written(&cast.ty),
            // Numbers, texts, ranges and lists of them have no methods of ours.
            syn::Expr::Lit(_) | syn::Expr::Range(_) | syn::Expr::Binary(_) | syn::Expr::Macro(_) => {
                Type::Foreign("literal".to_owned(), Vec::new())
            }
            syn::Expr::Repeat(list) => Type::foreign("array", self.infer(&list.expr)),
            syn::Expr::Array(list) => {
                Type::foreign("array", list.elems.first().map_or(Type::Unknown, |one| self.infer(one)))
            }
            syn::Expr::Unsafe(block) => match block.block.stmts.as_slice() {
                [syn::Stmt::Expr(last, None)] => self.infer(last),
                _ => Type::Unknown,
            },
            syn::Expr::Call(call) => self.returned(call),
            syn::Expr::MethodCall(call) => {
                let (of, name) = (self.infer(&call.receiver), call.method.to_string());
                match name.as_str() {
                    "clone" | "as_ref" | "as_mut" | "as_slice" | "as_deref" | "borrow" | "filter" | "to_owned" => of,
                    "unwrap" | "expect" | "unwrap_or" | "unwrap_or_else" | "unwrap_or_default" if matches!(&of, Type::Foreign(name, _) if WRAPPERS.contains(&name.as_str())) => {
                        of.inner(&WRAPPERS)
                    }
                    "map_err" | "ok" | "or_else" | "ok_or" => of,
                    "len" | "count" | "load" | "is_some" | "is_none" | "is_ok" | "is_err" | "is_empty" => {
                        Type::Foreign("number".to_owned(), Vec::new())
                    }
                    _ => match self.methods.called(&of, &name, call.args.len()).as_slice() {
                        [method] if of != Type::Unknown => method.returns.clone(),
                        _ => Type::Unknown,
                    },
                }
            }
            _ => Type::Unknown,
        }
    }

    fn returned(&self, call: &syn::ExprCall) -> Type {
        let syn::Expr::Path(path) = &*call.func else { return Type::Unknown };
        let names = names_of(&path.path);
        match names.as_slice() {
            [name] if ["Some", "Ok"].contains(&name.as_str()) => {
                let inner = call.args.first().map_or(Type::Unknown, |one| self.infer(one));
                Type::foreign(if name == "Some" { "Option" } else { "Result" }, inner)
            }
            [.., name] => {
                if let Some((of, name)) = self.of_type(&path.path) {
                    return match self.methods.called(&of, &name, call.args.len()).as_slice() {
                        [method] => method.returns.clone(),
                        _ => Type::Unknown,
                    };
                }
                if let Some((at, name)) = self.methods.named(self.module, &names) {
                    return Type::Own(at, name);
                }
                let at = match names.len() {
                    1 => Some(self.module.clone()),
                    _ => self.methods.sources.target(self.module, &names[..names.len() - 1]),
                };
                let at = at.unwrap_or_else(|| self.module.clone());
                self.methods.functions.get(&(at, name.clone())).cloned().unwrap_or(Type::Unknown)
            }
            [] => Type::Unknown,
        }
    }

    /// What a path names of a type: `Type::method`.
    fn of_type(&self, path: &syn::Path) -> Option<(Type, String)> {
        let names = names_of(path);
        let [before @ .., name] = names.as_slice() else { return None };
        if before.is_empty() {
            return None;
        }
        if before == ["Self"] {
            return Some((self.own.clone()?, name.clone()));
        }
        let (at, of) = self.methods.named(self.module, before)?;
        Some((Type::Own(at, of), name.clone()))
    }

    fn function(&mut self, signature: &syn::Signature, look: impl FnOnce(&mut Self)) {
        self.within(|finder| {
            for input in &signature.inputs {
                if let syn::FnArg::Typed(input) = input {
                    let of = finder.written(&input.ty);
                    finder.take_apart(&input.pat, &of);
                }
            }
            look(finder);
        });
    }
}

impl<'ast> Visit<'ast> for Finder<'_, '_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = self.written(&item.self_ty);
        let before = self.own.replace(of);
        visit::visit_item_impl(self, item);
        self.own = before;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, |finder| visit::visit_impl_item_fn(finder, item));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, |finder| visit::visit_trait_item_fn(finder, item));
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.within(|finder| visit::visit_block(finder, block));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        let of = local.init.as_ref().map_or(Type::Unknown, |init| self.infer(&init.expr));
        self.take_apart(&local.pat, &of);
    }

    fn visit_expr_let(&mut self, expression: &'ast syn::ExprLet) {
        visit::visit_expr_let(self, expression);
        let of = self.infer(&expression.expr);
        self.take_apart(&expression.pat, &of);
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        self.within(|finder| visit::visit_expr_if(finder, expression));
    }

    fn visit_expr_while(&mut self, expression: &'ast syn::ExprWhile) {
        self.within(|finder| visit::visit_expr_while(finder, expression));
    }

    fn visit_expr_for_loop(&mut self, expression: &'ast syn::ExprForLoop) {
        self.visit_expr(&expression.expr);
        let of = self.infer(&expression.expr).inner(&LISTS);
        self.within(|finder| {
            finder.take_apart(&expression.pat, &of);
            finder.visit_block(&expression.body);
        });
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        self.visit_expr(&expression.expr);
        let of = self.infer(&expression.expr);
        for arm in &expression.arms {
            self.within(|finder| {
                finder.take_apart(&arm.pat, &of);
                visit::visit_arm(finder, arm);
            });
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.within(|finder| {
            closure.inputs.iter().for_each(|input| finder.take_apart(input, &Type::Unknown));
            finder.visit_expr(&closure.body);
        });
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let of = self.infer(&call.receiver);
        self.note(&of, &call.method.to_string(), call.args.len());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if let Some((of, name)) = self.of_type(&path.path) {
            self.note(&of, &name, 0);
        }
        visit::visit_expr_path(self, path);
    }
}
