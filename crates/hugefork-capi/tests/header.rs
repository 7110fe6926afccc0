//! The hand-written header declares exactly the items that the sources define: names, types,
//! parameters, fields, numbers.

mod common;
#[path = "common/declarations.rs"]
mod declarations;
#[path = "common/definitions.rs"]
mod definitions;

use common::{header, words};
use declarations::Declarations;
use hugefork::ErrorCode;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn header_and_sources_declare_the_same_items() {
    let (header, sources) = (Declarations::of_header(), Declarations::of_sources());
    assert_eq!(header.functions, sources.functions);
    assert_eq!(header.structs, sources.structs);
    let mut constants = sources.constants;
    for code in ErrorCode::ALL {
        let name = format!("HF_E_{}", code.as_str().to_uppercase());
        constants.insert(name, -i64::from(code.number()));
    }
    assert_eq!(header.constants, constants);
    assert!(header.functions.len() > 50 && header.structs.len() >= 11 && constants.len() > 50);
}

#[test]
fn a_difference_is_found() {
    let declared = Declarations::read(
        "/* a */\n#ifndef X\n#ifdef __cplusplus\nextern \"C\" {\n#endif\nenum e { A = 1, /* b */ B = -2 };\ntypedef struct h h;\n\
         typedef struct s { size_t size;\n  void (*f)(int a, void *b); } s;\nconst char *g(const h *x, size_t n);\n\
         void v(void);\n#ifdef __cplusplus\n}\n#endif\n",
    );
    assert_eq!(
        declared.constants.iter().map(|(name, number)| (name.as_str(), *number)).collect::<Vec<_>>(),
        [("A", 1), ("B", -2)]
    );
    assert_eq!(declared.structs["s"], "size_t size;void(*f)(int a,void*b);");
    assert_eq!(declared.structs["h"], "opaque");
    assert_eq!(declared.functions["g"], "const char*g(const h*x,size_t n)");
    assert_eq!(declared.functions["v"], "void v(void)");
}

/// Compiles text that includes the header. Returns whether that succeeded, and the compiler's output.
fn compile(compiler: &str, arguments: &[&str], text: &str) -> (bool, String) {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
    command.arg(common::folder().join("include")).args(arguments).arg("-");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler is installed");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), words(&output))
}

#[test]
fn every_dialect_takes_the_header_and_its_macros() {
    let mut text = "#include <hugefork.h>\n#include <hugefork.h>\nsize_t none = HF_NONE;\n".to_owned();
    let header = Declarations::of_header();
    // `-Wextra` reports a macro that lacks a value.
    for name in header.structs.iter().filter(|(_, fields)| *fields != "opaque").map(|(name, _)| name) {
        text += &format!("{name} of_{name} = {}_INIT;\n", name.to_uppercase());
    }
    let dialects = [
        ("cc", "-xc", "c99"),
        ("cc", "-xc", "c11"),
        ("cc", "-xc", "c17"),
        ("c++", "-xc++", "c++11"),
        ("c++", "-xc++", "c++17"),
        ("c++", "-xc++", "c++20"),
    ];
    for (compiler, language, dialect) in dialects {
        let (is_well, said) = compile(compiler, &[language, &format!("-std={dialect}")], &text);
        assert!(is_well, "{dialect}: {said}");
    }
    for dialect in ["c++17", "c++20"] {
        let (is_well, said) = compile("c++", &["-xc++", &format!("-std={dialect}")], "#include <hugefork.hpp>\n");
        assert!(is_well, "{dialect}: {said}");
    }
}

/// `repr(C)` and the same fields give the same layout, if each C type has the size that the test assumes.
#[test]
fn structs_are_as_large_as_in_rust_and_have_no_padding() {
    let header = Declarations::of_header();
    let mut text = "#include <hugefork.h>\n".to_owned();
    for (name, fields) in header.structs.iter().filter(|(_, fields)| *fields != "opaque") {
        let names = fields.split_terminator(';').map(|field| match field.split_once("(*") {
            Some((_, function)) => function.split_once(')').unwrap().0,
            None => field.rsplit([' ', '*']).next().unwrap(),
        });
        let sizes: Vec<String> = names.map(|field| format!("sizeof(((struct {name} *)0)->{field})")).collect();
        text += &format!("_Static_assert({} == sizeof({name}), \"{name}\");\n", sizes.join(" + "));
    }
    for (rust, c, size) in [
        ("usize", "size_t", size_of::<usize>()),
        ("u64", "uint64_t", size_of::<u64>()),
        ("c_int", "int", size_of::<std::ffi::c_int>()),
        ("Option<fn()>", "void (*)(void)", size_of::<Option<fn()>>()),
    ] {
        text += &format!("_Static_assert(sizeof({c}) == {size}, \"{rust}\");\n");
    }
    let (is_well, said) = compile("cc", &["-xc", "-std=c11"], &text);
    assert!(is_well, "{said}");
    assert!(!compile("cc", &["-xc", "-std=c11"], &text.replace(" == sizeof", " + 1 == sizeof")).0);
}

/// The sizes of the first release. Smaller structs are refused, so these numbers never change.
#[test]
fn structs_never_shrink() {
    let sizes = [
        ("hf_fault_stats", 216),
        ("hf_lazy_freed", 64),
        ("hf_observer", 40),
        ("hf_pool_options", 112),
        ("hf_pool_stats", 200),
        ("hf_region_options", 32),
        ("hf_region_stats", 112),
    ];
    let mut text = "#include <hugefork.h>\n".to_owned();
    for (name, first) in sizes {
        text += &format!("_Static_assert(sizeof({name}) >= {first}, \"{name}\");\n");
    }
    let (is_well, said) = compile("cc", &["-xc", "-std=c11"], &text);
    assert!(is_well, "{said}");
    let header = Declarations::of_header();
    let structs = header.structs.iter().filter(|(_, fields)| *fields != "opaque").map(|(name, _)| name.as_str());
    assert_eq!(structs.collect::<Vec<_>>(), sizes.map(|(name, _)| name));
}

#[test]
fn the_versions_agree() {
    let header = header();
    let version = env!("CARGO_PKG_VERSION");
    let parts: Vec<&str> = version.split('.').collect();
    for line in [
        format!("#define HF_VERSION \"{version}\""),
        format!("#define HF_VERSION_MAJOR {}", parts[0]),
        format!("#define HF_VERSION_MINOR {}", parts[1]),
        format!("#define HF_VERSION_PATCH {}", parts[2]),
    ] {
        assert!(header.lines().any(|found| found == line), "the header lacks: {line}");
    }
    assert!(header.lines().any(|line| line == "#define HF_NONE SIZE_MAX"));
}

/// Each function has a comment right above it, and each error code in the comments exists.
#[test]
fn every_function_is_documented() {
    let header = header();
    let declared = Declarations::of_header();
    for name in declared.functions.keys() {
        let call = format!("{name}(");
        let at = header.match_indices(&call).map(|(at, _)| at);
        let before = at.map(|at| header[..at].rsplit_once('\n').unwrap().0).find(|before| before.ends_with("*/"));
        assert!(before.is_some(), "{name} has no comment above it");
    }
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named: BTreeSet<&str> =
        header.split(|letter| !is_of_name(letter)).filter(|word| word.starts_with("hf_")).collect();
    for name in named {
        let is_known = declared.functions.contains_key(name)
            || declared.structs.contains_key(name)
            || header.contains(&format!("enum {name} {{"));
        assert!(is_known, "the header names {name}, which is not there");
    }
    for name in header.split(|letter| !is_of_name(letter)).filter(|word| word.starts_with("HF_E_") && *word != "HF_E_")
    {
        assert!(declared.constants.contains_key(name), "the header names {name}, which is not there");
    }
}

#[test]
fn the_header_is_plain() {
    let header = header();
    assert!(header.is_ascii());
    for line in header.lines() {
        assert!(line.len() <= 100, "wrap: {line}");
        assert!(!line.contains("//"), "a comment of C++: {line}");
    }
}
