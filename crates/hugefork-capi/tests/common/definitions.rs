//! The definitions in the sources, in the form of C declarations, for comparison with the header.

use std::fs;

use syn::parse::{Parse, ParseStream};

use crate::common::folder;
use crate::declarations::{Declarations, squeezed};

impl Declarations {
    /// The sources' definitions as C declarations.
    pub(crate) fn of_sources() -> Declarations {
        let mut found = Declarations::default();
        for entry in fs::read_dir(folder().join("src")).unwrap().flatten() {
            let file = syn::parse_file(&fs::read_to_string(entry.path()).unwrap()).unwrap();
            file.items.iter().for_each(|item| found.add_item(item));
        }
        found
    }

    fn add_item(&mut self, item: &syn::Item) {
        match item {
            syn::Item::Fn(function) if is_exported(&function.attrs) => {
                assert!(function.sig.abi.is_some(), "{} is not extern \"C\"", function.sig.ident);
                let name = function.sig.ident.to_string();
                self.functions.insert(name, squeezed(&declaration(&function.sig)));
            }
            syn::Item::Struct(item) if item.ident.to_string().starts_with("hf_") => {
                assert!(is_repr_c(&item.attrs), "{} is not repr(C)", item.ident);
                let field = |field: &syn::Field| declared(&field.ty, &field.ident.as_ref().unwrap().to_string()) + ";";
                let fields: String = item.fields.iter().map(field).collect();
                self.structs.insert(item.ident.to_string(), squeezed(&fields));
            }
            syn::Item::Macro(item) if item.mac.path.is_ident("figures") => {
                let structs: Figures = item.mac.parse_body().unwrap();
                self.structs.extend(structs.0);
            }
            syn::Item::Macro(item) if item.mac.path.is_ident("choices") => {
                // `HF_A = 1 => …`, by the value that each constant selects.
                let text = item.mac.tokens.to_string();
                for (before, after) in
                    text.match_indices("=>").map(|(at, _)| text[..at].split_at(text[..at].rfind('=').unwrap()))
                {
                    let name = before.split_whitespace().next_back().unwrap();
                    self.constants.insert(name.to_owned(), after[1..].trim().parse().unwrap());
                }
            }
            // `hf_a = A, b"…";`, a kind of handle a row.
            syn::Item::Macro(item) if item.mac.path.is_ident("kinds") => {
                let text = item.mac.tokens.to_string();
                let names = text.split_whitespace().filter(|word| word.starts_with("hf_"));
                self.structs.extend(names.map(|name| (name.to_owned(), "opaque".to_owned())));
            }
            syn::Item::Const(item) if item.ident.to_string().starts_with("HF_") => {
                if let Some(number) = number(&item.expr) {
                    self.constants.insert(item.ident.to_string(), number);
                }
            }
            _ => {}
        }
    }
}

/// The structs that `figures!` of stats.rs makes, each with its fields as C declares them.
struct Figures(Vec<(String, String)>);

impl Parse for Figures {
    fn parse(input: ParseStream<'_>) -> syn::Result<Figures> {
        let mut found = Vec::new();
        while !input.is_empty() {
            input.call(syn::Attribute::parse_outer)?;
            let name: syn::Ident = input.parse()?;
            // Skips the first size and the engine's figures.
            input.parse::<syn::Token![,]>()?;
            input.parse::<syn::LitInt>()?;
            input.parse::<syn::Token![,]>()?;
            input.parse::<syn::Ident>()?;
            input.parse::<syn::Token![:]>()?;
            input.parse::<syn::Ident>()?;
            let body;
            syn::braced!(body in input);
            let mut fields = "size_t size;".to_owned();
            while !body.is_empty() {
                let field: syn::Ident = body.parse()?;
                body.parse::<syn::Token![:]>()?;
                fields += &(declared(&body.parse()?, &field.to_string()) + ";");
                body.parse::<syn::Token![=]>()?;
                body.parse::<syn::Expr>()?;
                body.parse::<syn::Token![,]>()?;
            }
            found.push((name.to_string(), squeezed(&fields)));
        }
        Ok(Figures(found))
    }
}

fn is_exported(attributes: &[syn::Attribute]) -> bool {
    let says_so = |attribute: &syn::Attribute| {
        attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "no_mangle")
    };
    attributes.iter().any(|attribute| attribute.path().is_ident("unsafe") && says_so(attribute))
}

fn is_repr_c(attributes: &[syn::Attribute]) -> bool {
    let is_c =
        |attribute: &syn::Attribute| attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "C");
    attributes.iter().any(|attribute| attribute.path().is_ident("repr") && is_c(attribute))
}

/// A signed whole number; other constants do not belong to an enum.
fn number(value: &syn::Expr) -> Option<i64> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_parse().ok(),
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => number(expr).map(|number| -number),
        _ => None,
    }
}

/// A function as C declares it.
fn declaration(signature: &syn::Signature) -> String {
    let parameter = |input: &syn::FnArg| match input {
        syn::FnArg::Typed(typed) => match &*typed.pat {
            syn::Pat::Ident(name) => declared(&typed.ty, &name.ident.to_string()),
            _ => panic!("a parameter of {} has no name", signature.ident),
        },
        syn::FnArg::Receiver(_) => panic!("{} is a method", signature.ident),
    };
    let parameters = if signature.inputs.is_empty() {
        "void".to_owned()
    } else {
        signature.inputs.iter().map(parameter).collect::<Vec<_>>().join(", ")
    };
    let function = format!("{}({parameters})", signature.ident);
    match &signature.output {
        syn::ReturnType::Default => format!("void {function}"),
        syn::ReturnType::Type(_, of) => declared(of, &function),
    }
}

/// `name` of a type, as C declares it.
fn declared(of: &syn::Type, name: &str) -> String {
    match of {
        syn::Type::Ptr(pointer) => {
            let inner = &*pointer.elem;
            match (inner, matches!(pointer.mutability, syn::PointerMutability::Const(_))) {
                // `const` qualifies the pointee, and follows the star if that is itself a pointer.
                (syn::Type::Ptr(_), true) => declared(inner, &format!("const *{name}")),
                (_, true) => format!("const {}", declared(inner, &format!("*{name}"))),
                (_, false) => declared(inner, &format!("*{name}")),
            }
        }
        syn::Type::Path(path) => {
            let last = path.path.segments.last().unwrap();
            if last.ident == "Option" {
                let syn::PathArguments::AngleBracketed(of) = &last.arguments else { panic!("Option of nothing") };
                let Some(syn::GenericArgument::Type(syn::Type::FnPtr(function))) = of.args.first() else {
                    panic!("an Option of C is a function");
                };
                return pointer_to(function, name);
            }
            format!("{} {name}", in_c(&last.ident.to_string()))
        }
        _ => panic!("{name} is of a type that C has not"),
    }
}

fn pointer_to(function: &syn::TypeFnPtr, name: &str) -> String {
    assert!(function.abi.is_some() && matches!(function.output, syn::ReturnType::Default), "{name}");
    let parameter = |input: &syn::NamedArg| {
        let (name, _) = input.name.as_ref().expect("parameters of functions have names");
        declared(&input.ty, &name.to_string())
    };
    let parameters: Vec<String> = function.inputs.iter().map(parameter).collect();
    format!("void (*{name})({})", parameters.join(", "))
}

fn in_c(name: &str) -> &str {
    match name {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        "u64" => "uint64_t",
        name if name.starts_with("hf_") => name,
        name => panic!("C has no {name}"),
    }
}
