//! Finds calls of methods from file to file. A method belongs to the file that contains it, whatever its type, so calls
//! may cross files without an import.
//!
//! Which method a call means depends on the type of its receiver. The type is inferred from the sources: from the types
//! of fields and parameters, and from the return types of methods. Where that is not enough, the call may mean any
//! method with this name and number of arguments.

use std::collections::BTreeMap;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

use super::sources::{Module, is_for_tests};
use super::types::{LISTS, Methods, Type, WRAPPERS, is_test, names_of};

/// A call in one file of a method in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) from: Module,
    /// The files that may contain the method.
    pub(crate) to: Vec<Module>,
    pub(crate) method: String,
}

impl Methods<'_> {
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

/// A visitor of one file, with the known types of its variables.
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

    /// Notes the types of the names in a pattern that is matched with a value of type `of`.
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
            // Numbers, strings, ranges and lists of them have no methods of ours.
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

    /// The type and the name in a path `Type::method`.
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

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        // Most macros are assertions, whose arguments are expressions.
        let expressions = item.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
        expressions.iter().flatten().for_each(|one| self.visit_expr(one));
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if let Some((of, name)) = self.of_type(&path.path) {
            self.note(&of, &name, 0);
        }
        visit::visit_expr_path(self, path);
    }
}
