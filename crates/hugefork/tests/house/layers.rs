//! Checks the layers of the engine: rooms import from below and call methods below, at most two files import each
//! other, and a single room talks to the system. Also checks how matches treat the states of entries, and the width of
//! comments.
//!
//! The tests read the sources as they are written. A path counts for the file that it names, or for the deepest file on
//! its way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::types::Methods;
use crate::sources::{Module, Sources, crates, engine, is_for_tests};
use syn::visit::{self, Visit};

/// The rooms of the engine. Each room may be used (imported, called) only by the rooms in later lines; rooms in one
/// line do not use each other.
const ROOMS: [&[&str]; 10] = [
    &["units", "ranges"],
    &["sys"],
    &["types", "sync"],
    &["mem"],
    &["stats", "table"],
    &["pool"],
    &["mapping"],
    &["snapshot"],
    &["region"],
    &["fault"],
];

/// The rooms of `region/`, in the same order.
const REGION: [&[&str]; 5] = [
    &["state"],
    &["private"],
    &["write"],
    &["cut", "reset", "free", "changes", "program"],
    &["children", "fork", "maintain"],
];

/// The room above all of these.
const FACE: &str = "api";

/// The room above that.
const HEAP: &str = "heap";

/// The highest room, for one other crate only.
const SEAM: &str = "seam";

/// Crates that only `sys` may name.
const SYSTEM: [&str; 3] = ["hugefork_linux", "libc", "rustix"];

impl Sources {
    /// The file that `path` leads to from `module`, if it is one of the crate's.
    pub(super) fn target(&self, module: &Module, path: &[String]) -> Option<Module> {
        let first = path.first()?.as_str();
        let (mut at, mut rest): (Module, &[String]) = match first {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (module.clone(), &path[1..]),
            "super" => (module.clone(), path),
            _ if self.files.contains_key(&[module.as_slice(), &path[..1]].concat()) => (module.clone(), path),
            _ => return None,
        };
        while rest.first().is_some_and(|name| name == "super") {
            at.pop();
            rest = &rest[1..];
        }
        for name in rest {
            at.push(name.clone());
            if !self.files.contains_key(&at) {
                at.pop();
                break;
            }
        }
        (at != *module).then_some(at)
    }

    /// For each file, the files that it imports.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |module: &Module, file: &syn::File| {
            let paths = paths_in(file);
            paths.iter().filter_map(|path| self.target(module, path)).collect()
        };
        self.files.iter().map(|(module, file)| (module, of(module, file))).collect()
    }
}

/// All paths that a file names, except in its tests.
fn paths_in(file: &syn::File) -> Vec<Vec<String>> {
    let mut paths = Paths::default();
    file.items.iter().for_each(|item| paths.visit_item(item));
    paths.found
}

#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
}

impl Paths {
    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.found.push(with(&name.ident)),
            syn::UseTree::Rename(rename) => self.found.push(with(&rename.ident)),
            syn::UseTree::Glob(_) => self.found.push(before.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.tree(&[], &item.tree);
        }
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {
        // A path in a visibility is no import.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        // The argument of a macro is tokens: paths are recognised by their first word.
        let text = without_quotes(&item.tokens.to_string()).replace(' ', "");
        for start in ["crate::", "super::", "self::", "hugefork_linux::", "libc::", "rustix::"] {
            for (at, _) in text.match_indices(start) {
                let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
                let path: String = text[at..].chars().take_while(|&letter| is_path(letter)).collect();
                self.found.push(path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect());
            }
        }
        visit::visit_macro(self, item);
    }
}

/// Code without its string literals.
fn without_quotes(code: &str) -> String {
    let (mut is_quoted, mut is_escaped) = (false, false);
    code.chars()
        .filter(|&letter| {
            let is_quote = letter == '"' && !is_escaped;
            is_escaped = is_quoted && letter == '\\' && !is_escaped;
            is_quoted ^= is_quote;
            !is_quoted && !is_quote
        })
        .collect()
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("/") }
}

/// The room of a file. The folders of `region/` are rooms of their own.
fn room(module: &Module) -> &[String] {
    let is_of_region = module.first().is_some_and(|room| room == "region");
    &module[..module.len().min(if is_of_region { 2 } else { 1 })]
}

/// The height of a room; `None` for the root, which only lists the rooms.
fn height(module: &Module) -> Option<(usize, usize)> {
    let place = |rooms: &[&[&str]], room: &str| {
        let found = rooms.iter().position(|rooms| rooms.contains(&room));
        found.unwrap_or_else(|| panic!("room {room} has no place in the house"))
    };
    match room(module) {
        [] => None,
        [face] if face == FACE => Some((ROOMS.len(), 0)),
        [heap] if heap == HEAP => Some((ROOMS.len() + 1, 0)),
        [seam] if seam == SEAM => Some((ROOMS.len() + 2, 0)),
        [room] => Some((place(&ROOMS, room), REGION.len())),
        [room, within, ..] => Some((place(&ROOMS, room), place(&REGION, within))),
    }
}

/// Whether one file may import from another, or call its methods.
fn may_use(from: &Module, to: &Module) -> bool {
    let Some(here) = height(from) else { return true };
    // The root is above all rooms.
    room(from) == room(to) || height(to).is_some_and(|there| there < here)
}

#[test]
fn rooms_import_from_below() {
    let engine = engine();
    let mut wrong = Vec::new();
    for (module, imports) in engine.imports() {
        let up = imports.iter().filter(|import| !may_use(module, import));
        wrong.extend(up.map(|import| format!("{} imports {}", name(module), name(import))));
    }
    assert_eq!(wrong, Vec::<String>::new(), "these point up");
}

#[test]
fn rooms_call_methods_from_below() {
    let engine = engine();
    let calls = Methods::of(&engine).calls();
    assert!(calls.len() > 1000, "so many calls go from file to file: {}", calls.len());
    let up = calls.iter().filter(|call| !call.to.iter().any(|to| may_use(&call.from, to)));
    let wrong: Vec<_> =
        up.map(|call| format!("{} calls {} in {}", name(&call.from), call.method, name(&call.to[0]))).collect();
    assert_eq!(wrong, Vec::<String>::new(), "these point up");
}

#[test]
fn calls_are_found_by_the_types_that_they_are_made_on() {
    let module = |name: &str| vec![name.to_owned()];
    let files = [
        (
            "low",
            "pub struct Core { part: Part } pub struct Part { cores: EngineVec<Core> }
             impl Core {
                 fn go(&self) { self.rise(); self.part.rise(); let Some((_, core)) = self.part.core() else { return }; core.fall() }
                 fn stop(&self) { self.part.cores.iter().for_each(|one| one.leap(1)); self.part.cores[0].sink(); Core::jump(self) }
             }
             impl Part { fn rise(&self) {} fn core(&self) -> Option<(usize, &Core)> { None } }",
        ),
        (
            "high",
            "use crate::low::Core;
             impl Core { fn rise(&self) {} fn fall(&self) {} fn leap(&self, far: usize) {} fn sink(&self) {} fn jump(&self) {} }
             impl Other { fn leap(&self) {} }",
        ),
    ];
    let files = files.map(|(name, text)| (module(name), syn::parse_file(text).unwrap()));
    let sources = Sources { files: files.into_iter().collect() };
    let calls = Methods::of(&sources).calls();
    assert!(calls.iter().all(|call| call.from == module("low") && call.to == [module("high")]), "{calls:?}");
    let called: Vec<_> = calls.iter().map(|call| call.method.as_str()).collect();
    assert_eq!(called, ["Core::fall", "Core::jump", "Core::rise", "Core::sink", "leap"]);
}

/// Only `RegionCore` has methods in several rooms of `region/`: everything that happens to a region does not fit into
/// one.
#[test]
fn other_types_of_a_region_have_their_methods_in_one_room() {
    let engine = engine();
    let methods = Methods::of(&engine);
    for ((_, of), files) in methods.homes().into_iter().filter(|((module, _), _)| module[0] == "region") {
        let rooms: BTreeSet<_> = files.iter().map(|module| room(module).join("/")).collect();
        assert!(rooms.len() == 1 || of == "RegionCore", "{of} has methods in {rooms:?}");
    }
}

/// The methods of `RegionCore` in a file that files outside of its room may call.
fn offered(file: &syn::File) -> BTreeSet<String> {
    let of_region = file.items.iter().filter_map(|item| match item {
        syn::Item::Impl(item) if item.trait_.is_none() && !is_for_tests(&item.attrs) => match &*item.self_ty {
            syn::Type::Path(path) if path.path.segments.last()?.ident == "RegionCore" => Some(&item.items),
            _ => None,
        },
        _ => None,
    });
    let offered = of_region.flatten().filter_map(|item| match item {
        syn::ImplItem::Fn(function) if !is_for_tests(&function.attrs) => match &function.vis {
            syn::Visibility::Restricted(to) if !to.path.is_ident("super") => Some(function.sig.ident.to_string()),
            _ => None,
        },
        _ => None,
    });
    offered.collect()
}

/// The names in the first column of the table in the head of a file.
fn listed(file: &syn::File) -> BTreeSet<String> {
    let lines = file.attrs.iter().filter_map(|comment| match &comment.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) => Some(line.value()),
        _ => None,
    });
    let table = lines.skip_while(|line| line != " | methods of `RegionCore` | purpose |").skip(2);
    let cells = table.map_while(|line| Some(line.strip_prefix(" | `")?.split(" | ").next()?.to_owned()));
    cells.flat_map(|cell| cell.split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<_>>()).collect()
}

/// `RegionCore` has methods in all rooms of `region/`. The head of each room lists those that other rooms may call.
#[test]
fn rooms_say_which_methods_of_a_region_they_offer() {
    let engine = engine();
    let mut rooms: BTreeMap<&[String], BTreeSet<String>> = BTreeMap::new();
    for (module, file) in engine.files.iter().filter(|(module, _)| module.len() > 1 && module[0] == "region") {
        rooms.entry(room(module)).or_default().append(&mut offered(file));
    }
    let is_folder = |room: &[String]| engine.files.keys().any(|module| module.len() > 2 && module.starts_with(room));
    rooms.retain(|room, _| is_folder(room));
    assert_eq!(rooms.len(), 6);
    for (room, offered) in rooms {
        assert_eq!(listed(&engine.files[room]), offered, "the list in {}", room.join("/"));
    }
}

#[test]
fn only_sys_talks_to_the_system() {
    let engine = engine();
    let mut wrong = Vec::new();
    for (module, file) in &engine.files {
        let is_door = module.first().is_some_and(|room| room == "sys");
        for path in paths_in(file).iter().filter(|_| !is_door) {
            if path.len() > 1 && SYSTEM.contains(&path[0].as_str()) {
                wrong.push(format!("{} names {}", name(module), path.join("::")));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "this is for sys to do");
}

/// The groups of files that reach each other, the largest first.
fn circles(imports: &BTreeMap<&Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            for import in imports.get(&module).into_iter().flatten() {
                if seen.insert(import.clone()) {
                    next.push(import.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> = imports.keys().map(|module| (*module, reached(module))).collect();
    let circle = |module: &Module| -> Vec<Module> {
        let mutual = reach[module].iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(module)));
        mutual.cloned().collect()
    };
    let mut circles: Vec<Vec<Module>> =
        reach.keys().map(|module| circle(module)).filter(|circle| circle.len() > 1).collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles.dedup();
    circles
}

#[test]
fn no_more_than_two_files_of_a_crate_import_each_other() {
    for crate_folder in fs::read_dir(crates()).unwrap().flatten() {
        let sources = Sources::of(&crate_folder.path().join("src"));
        for circle in circles(&sources.imports()) {
            let names: Vec<_> = circle.iter().map(name).collect();
            assert!(circle.len() <= 2, "{}: {names:?} import each other", crate_folder.file_name().display());
        }
    }
}

#[test]
fn circles_and_wrong_arrows_are_found() {
    let module = |name: &str| vec![name.to_owned()];
    let file = |text: &str| syn::parse_file(text).unwrap();
    let files = [
        ("a", "use crate::b::Thing; #[cfg(test)] mod tests { use crate::d::Other; }"),
        ("b", "fn one() { super::c::two() }"),
        ("c", "use crate::{a::{self, X}, d}; const LIMIT: i32 = libc::EINVAL;"),
        ("d", "fn say() { println!(\"crate::a, \\\" {}\", rustix::process::getpid()) }"),
    ];
    let sources = Sources { files: files.into_iter().map(|(name, text)| (module(name), file(text))).collect() };
    let imports = sources.imports();
    assert_eq!(imports[&module("c")], BTreeSet::from([module("a"), module("d")]));
    assert_eq!(imports[&module("a")], BTreeSet::from([module("b")]));
    assert_eq!(circles(&imports), [["a", "b", "c"].map(module)]);
    let of_system =
        |name: &str| paths_in(&sources.files[&module(name)]).iter().any(|path| SYSTEM.contains(&path[0].as_str()));
    assert_eq!(["a", "b", "c", "d"].map(of_system), [false, false, true, true]);
}

/// Whether a pattern matches every value, so that it could match any state.
fn takes_all(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Wild(_) | syn::Pat::Rest(_) => true,
        // A variable, not a constant.
        syn::Pat::Ident(name) => name.subpat.is_none() && name.ident.to_string().starts_with(char::is_lowercase),
        syn::Pat::Paren(inner) => takes_all(&inner.pat),
        syn::Pat::Reference(inner) => takes_all(&inner.pat),
        _ => false,
    }
}

/// Whether a pattern names a state of an entry.
fn names_a_state(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Or(any) => any.cases.iter().any(names_a_state),
        syn::Pat::Paren(inner) => names_a_state(&inner.pat),
        syn::Pat::Reference(inner) => names_a_state(&inner.pat),
        syn::Pat::Ident(name) => name.subpat.as_ref().is_some_and(|(_, pattern)| names_a_state(pattern)),
        syn::Pat::Path(path) => is_a_state(&path.path),
        syn::Pat::TupleStruct(one) => is_a_state(&one.path),
        _ => false,
    }
}

fn is_a_state(path: &syn::Path) -> bool {
    let of = path.segments.iter().rev().nth(1);
    of.is_some_and(|name| ["Entry", "State", "SplitPage"].contains(&name.ident.to_string().as_str()))
}

/// Finds matches on the states of entries that leave some states to an arm which does not name them.
#[derive(Default)]
struct Unnamed {
    found: usize,
    matches: usize,
}

impl<'ast> Visit<'ast> for Unnamed {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        // Each arm as a row of patterns, because a tuple is matched element by element.
        let row = |arm: &'ast syn::Arm| match &arm.pat {
            syn::Pat::Tuple(tuple) => tuple.elems.iter().collect(),
            pattern => vec![pattern],
        };
        let rows: Vec<Vec<&syn::Pat>> = expression.arms.iter().map(row).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        for column in 0..columns {
            let at = |row: &Vec<&'ast syn::Pat>| row.get(column).copied();
            if rows.iter().filter_map(at).any(names_a_state) {
                self.matches += 1;
                let is_short = |row: &Vec<&syn::Pat>| row.len() < columns && takes_all(row[0]);
                self.found += rows.iter().filter(|row| is_short(row) || at(row).is_some_and(takes_all)).count();
            }
        }
        visit::visit_expr_match(self, expression);
    }
}

#[test]
fn what_tells_states_apart_names_them_all() {
    let unnamed_in = |file: &syn::File| {
        let mut unnamed = Unnamed::default();
        unnamed.visit_file(file);
        (unnamed.matches, unnamed.found)
    };
    let made_up = |arms: &str| unnamed_in(&syn::parse_file(&format!("fn f() {{ match x {{ {arms} }} }}")).unwrap());
    assert_eq!(made_up("State::Zero => 1, _ => 2"), (1, 1));
    assert_eq!(made_up("(true, Entry::Private(block)) => 1, (_, other) => 2"), (1, 1));
    assert_eq!(made_up("(State::Zero | State::Lazy, _) => 1, _ => 2"), (1, 1));
    assert_eq!(made_up("(State::Zero, _) => 1, (State::Lazy, _) => 2"), (1, 0));
    assert_eq!(made_up("Some(block) => 1, _ => 2"), (0, 0));
    let engine = engine();
    let (mut wrong, mut matches) = (Vec::new(), 0);
    for (module, file) in &engine.files {
        let (seen, unnamed) = unnamed_in(file);
        matches += seen;
        if unnamed > 0 {
            wrong.push(format!("{}: {unnamed}", name(module)));
        }
    }
    assert!(matches > 20, "there are such matches: {matches}");
    assert_eq!(wrong, Vec::<String>::new(), "a new state would go unnoticed here");
}

/// The Rust files below `folder`, without build output.
fn rust_files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries
        .filter(|path| !path.ends_with("target"))
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => rust_files(&path),
            Some(extension) if extension == "rs" => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

/// rustfmt limits the width of code, but not of comments.
#[test]
fn no_comment_line_is_wider_than_120_columns() {
    let mut wide = Vec::new();
    for path in rust_files(&crates()) {
        let text = fs::read_to_string(&path).unwrap();
        let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > 120;
        let lines = text.lines().enumerate().filter(|(_, line)| is_wide(line));
        wide.extend(lines.map(|(before, _)| format!("{}:{}", path.display(), before + 1)));
    }
    assert_eq!(wide, Vec::<String>::new(), "wrap these");
}

/// Words that were replaced by those of the field. They must not come back in names of the engine and of the library of
/// `hugefork run` (the glossary of docs/design.md).
const GIVEN_UP: [&str; 33] = [
    "apart",
    "armed",
    "arming",
    "aside",
    "asides",
    "attic",
    "bell",
    "books",
    "disarm",
    "favourite",
    "fold",
    "folded",
    "folding",
    "folds",
    "heir",
    "heirs",
    "home",
    "homes",
    "lap",
    "laps",
    "nap",
    "overlaid",
    "overlay",
    "overlays",
    "promise",
    "promised",
    "promises",
    "tend",
    "tended",
    "tender",
    "tending",
    "tends",
    "trial",
];

#[test]
fn words_that_were_given_up_name_nothing() {
    // A name of the kernel's.
    let is_given = |name: &str| name.eq_ignore_ascii_case("set_mempolicy_home_node");
    let folders = ["hugefork/src", "hugefork-linux/src", "hugefork-preload/src"].map(|folder| crates().join(folder));
    let mut found = BTreeSet::new();
    for path in folders.iter().flat_map(|folder| rust_files(folder)) {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let code = without_quotes(line);
            let names = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let names = names.filter(|name| !is_given(name));
            let given_up = names.filter(|name| words_of(name).iter().any(|word| GIVEN_UP.contains(&word.as_str())));
            found.extend(given_up.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert_eq!(found, BTreeSet::new(), "these have words that were given up");
}

/// The words of a name, whether it is written as `a_name`, `AName` or `A_NAME`.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && was_small {
            words.push(String::new());
        }
        was_small = letter.is_lowercase();
        words.last_mut().expect("there is one").extend(letter.to_lowercase().filter(|&letter| letter != '_'));
    }
    words
}

#[test]
fn names_are_taken_apart() {
    assert_eq!(words_of("is_in_use").join(" "), "is in use");
    assert_eq!(words_of("PageTable").join(" "), "page table");
    assert_eq!(words_of("PAGE_TABLE").join(" "), "page table");
}
