//! Builds a call graph from machine code: for each function of a program, the functions that it may call and the source
//! files of its code.
//!
//! ```text
//!   call f · jmp f                      an edge to f
//!   call [rip+slot] · mov r, [rip+slot] an edge to what the linker or loader puts into the slot
//!   lea r, [rip+f]                      an edge to f: a function that takes this address may call it
//!   lea r, [rip+table]                  an edge to each function whose address stands there: a table of a `dyn`
//!   call r · call [r+8]                 unknown: reported, for the reader to account for
//! ```
//! Only code reachable from a function's first instruction counts. The code that runs while a panic unwinds is entered
//! from outside, and nothing runs after a call that does not return.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SectionKind, SymbolKind};

/// A function, as its index in [`Program::functions`].
pub(crate) type Id = usize;

type Debug<'a> = addr2line::Context<EndianSlice<'a, LittleEndian>>;

/// A function's name and code. The code is empty if a shared library has it.
pub(crate) struct Function {
    pub(crate) name: String,
    code: Range<u64>,
}

impl Function {
    /// Whether it belongs to a shared library.
    pub(crate) fn is_import(&self) -> bool {
        self.code.is_empty()
    }
}

/// The properties of a function's code.
#[derive(Default)]
struct Does {
    calls: BTreeSet<Id>,
    /// Whether it contains a call whose target the machine code does not name.
    is_dynamic: bool,
    /// Whether it touches thread-local memory.
    is_thread_local: bool,
}

/// An executable: this process's own.
pub(crate) struct Program<'a> {
    file: object::File<'a>,
    debug: Debug<'a>,
    pub(crate) functions: Vec<Function>,
    by_address: BTreeMap<u64, Id>,
    /// The pointers that the loader puts at these addresses.
    pointers: BTreeMap<u64, Pointer>,
    /// Recognises functions that never return by their names.
    never_returns: fn(&str) -> bool,
}

#[derive(Clone, Copy)]
enum Pointer {
    /// To an address of the program.
    To(u64),
    /// To a function of a shared library.
    Import(Id),
}

impl<'a> Program<'a> {
    pub(crate) fn read(bytes: &'a [u8], never_returns: fn(&str) -> bool) -> Program<'a> {
        let file = object::File::parse(bytes).unwrap();
        let section = |name: &str| {
            let section = file.section_by_name(name);
            section.map_or(&[][..], |section| section.data().unwrap())
        };
        let dwarf = Dwarf::load(|id| Ok::<_, ()>(EndianSlice::new(section(id.name()), LittleEndian))).unwrap();
        let debug = Debug::from_dwarf(dwarf).unwrap();
        let (mut functions, mut by_address) = (Vec::new(), BTreeMap::new());
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
            let code = symbol.address()..symbol.address() + symbol.size();
            by_address.entry(code.start).or_insert_with(|| {
                functions.push(Function { name: readable(symbol.name().unwrap()), code });
                functions.len() - 1
            });
        }
        let mut pointers = BTreeMap::new();
        let mut imports = HashMap::new();
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let pointer = match relocation.target() {
                RelocationTarget::Symbol(index) => {
                    let symbol = file.dynamic_symbol_table().unwrap().symbol_by_index(index).unwrap();
                    let name = symbol.name().unwrap();
                    if symbol.is_undefined() {
                        Pointer::Import(*imports.entry(name).or_insert_with(|| {
                            functions.push(Function { name: name.to_owned(), code: 0..0 });
                            functions.len() - 1
                        }))
                    } else {
                        Pointer::To(symbol.address().wrapping_add_signed(relocation.addend()))
                    }
                }
                _ => Pointer::To(relocation.addend() as u64),
            };
            pointers.insert(at, pointer);
        }
        Program { file, debug, functions, by_address, pointers, never_returns }
    }

    /// The functions whose names satisfy `wanted`.
    pub(crate) fn named(&self, wanted: impl Fn(&str) -> bool) -> Vec<Id> {
        (0..self.functions.len()).filter(|&id| wanted(&self.functions[id].name)).collect()
    }

    /// Everything reachable from `roots`, on the shortest paths.
    pub(crate) fn reach(&self, roots: &[Id]) -> Reached<'_, 'a> {
        let mut reached = Reached {
            program: self,
            callers: BTreeMap::new(),
            order: Vec::new(),
            dynamic: Vec::new(),
            thread_local: Vec::new(),
        };
        let mut next: VecDeque<(Id, Option<Id>)> = roots.iter().map(|&root| (root, None)).collect();
        while let Some((function, caller)) = next.pop_front() {
            if reached.callers.contains_key(&function) {
                continue;
            }
            reached.callers.insert(function, caller);
            reached.order.push(function);
            if (self.never_returns)(&self.functions[function].name) {
                continue;
            }
            let does = self.does(function);
            next.extend(does.calls.into_iter().map(|callee| (callee, Some(function))));
            reached.dynamic.extend(does.is_dynamic.then_some(function));
            reached.thread_local.extend(does.is_thread_local.then_some(function));
        }
        reached
    }

    /// The source files of a function's code, including inlined code.
    pub(crate) fn sources(&self, function: Id) -> BTreeSet<&str> {
        let code = &self.functions[function].code;
        let locations = self.debug.find_location_range(code.start, code.end).unwrap();
        // Code that the compiler has added has no line.
        locations
            .filter(|(_, _, location)| location.line.is_some())
            .filter_map(|(_, _, location)| location.file)
            .collect()
    }

    fn bytes(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let section = self.file.sections().find(|section| {
            let has_bytes = section.file_range().is_some();
            has_bytes && (section.address()..section.address() + section.size()).contains(&range.start)
        })?;
        section.data_range(range.start, range.end - range.start).ok()?
    }

    fn is_code(&self, address: u64) -> bool {
        self.file.sections().any(|section| {
            let holds = (section.address()..section.address() + section.size()).contains(&address);
            holds && section.kind() == SectionKind::Text
        })
    }

    /// The pointer in the eight bytes at `address` when the program runs.
    fn pointer(&self, address: u64) -> Option<Pointer> {
        self.pointers.get(&address).copied().or_else(|| {
            let bytes = self.bytes(address..address + 8)?;
            Some(Pointer::To(u64::from_le_bytes(bytes.try_into().unwrap())))
        })
    }

    /// The function at a pointer, if there is one.
    fn function(&self, pointer: Pointer) -> Option<Id> {
        match pointer {
            Pointer::Import(id) => Some(id),
            Pointer::To(address) => self.by_address.get(&address).copied(),
        }
    }

    /// The methods in the table of a `dyn` at `address`. A table has the drop function, the size, the alignment, and
    /// the methods. If it is unclear whether the next table begins, its first function counts too. The drop function
    /// does not count: a reference never calls it, and a box calls it by an instruction of its own. The key of a
    /// thread-local value may follow, which is the address of its closure. A table of closures has that method first.
    fn table(&self, address: u64) -> impl Iterator<Item = Id> {
        let number = move |word: u64| match self.pointer(address + 8 * word) {
            Some(Pointer::To(number)) if !self.by_address.contains_key(&number) => Some(number),
            _ => None,
        };
        let is_alignment = move |word: u64| number(word).is_some_and(u64::is_power_of_two);
        let begins_next = move |word: u64| {
            let may_begin_one_later = number(word + 1) == Some(0) && is_alignment(word + 3);
            number(word + 1).is_some() && is_alignment(word + 2) && !may_begin_one_later
        };
        let function = move |word: u64| self.pointer(address + 8 * word).and_then(|at| self.function(at));
        let is_key =
            move |word: u64, id: Id| word > 3 && self.functions[id].name == "core::ops::function::FnOnce::call_once";
        let is_table = number(1).is_some() && is_alignment(2);
        (3_u64..)
            .map_while(move |word| function(word).filter(|&id| is_table && !begins_next(word) && !is_key(word, id)))
    }

    fn decode(&self, code: Range<u64>) -> Vec<Instruction> {
        let bytes = self.bytes(code.clone()).unwrap_or_default();
        Decoder::with_ip(64, bytes, code.start, DecoderOptions::NONE).into_iter().collect()
    }

    fn does(&self, function: Id) -> Does {
        let span = self.functions[function].code.clone();
        let code = self.decode(span.clone());
        let at: HashMap<u64, usize> = code.iter().enumerate().map(|(at, instruction)| (instruction.ip(), at)).collect();
        let returns = |id: &Id| !(self.never_returns)(&self.functions[*id].name);
        let mut does = Does::default();
        let mut seen = BTreeSet::new();
        let mut next = vec![span.start];
        while let Some(address) = next.pop() {
            // A jump out of the function counts already as a call of its target.
            let Some(&index) = at.get(&address) else { continue };
            if !seen.insert(address) {
                continue;
            }
            let instruction = &code[index];
            let after = instruction.next_ip();
            let named = self.named_by(instruction);
            does.calls.extend(&named);
            does.is_thread_local |= instruction.memory_segment() == Register::FS;
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Interrupt => next.push(after),
                FlowControl::Return | FlowControl::Exception => {}
                flow @ (FlowControl::UnconditionalBranch
                | FlowControl::ConditionalBranch
                | FlowControl::XbeginXabortXend) => {
                    let target = instruction.near_branch_target();
                    does.is_dynamic |= named.is_empty() && !span.contains(&target);
                    next.push(target);
                    next.extend((flow != FlowControl::UnconditionalBranch).then_some(after));
                }
                FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
                    does.is_dynamic |= named.is_empty();
                }
                FlowControl::IndirectBranch => {
                    let targets = self.targets_of_tables(&code, &span);
                    does.is_dynamic |= instruction.op0_kind() == OpKind::Memory || targets.is_empty();
                    next.extend(targets);
                }
                FlowControl::Call => {
                    does.is_dynamic |= named.is_empty() && instruction.mnemonic() != Mnemonic::Syscall;
                    next.extend(named.iter().all(returns).then_some(after));
                }
                FlowControl::IndirectCall => {
                    let is_known = match instruction.op0_kind() {
                        OpKind::Register => self.is_known(&code, index, instruction.op0_register()),
                        _ => instruction.is_ip_rel_memory_operand() && !named.is_empty(),
                    };
                    does.is_dynamic |= !is_known;
                    next.extend(named.iter().all(returns).then_some(after));
                }
            }
        }
        does
    }

    /// The targets of the `match`es of a function. For each `match`, the code takes the address of a table of distances
    /// from this address.
    fn targets_of_tables(&self, code: &[Instruction], span: &Range<u64>) -> Vec<u64> {
        let is_address = |instruction: &&Instruction| {
            instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand()
        };
        let targets = |table: u64| {
            (0..).map_while(move |entry| {
                let bytes = self.bytes(table + 4 * entry..table + 4 * entry + 4)?;
                let distance = i32::from_le_bytes(bytes.try_into().unwrap());
                Some(table.wrapping_add_signed(distance.into())).filter(|target| span.contains(target))
            })
        };
        code.iter().filter(is_address).flat_map(|lea| targets(lea.ip_rel_memory_address())).collect()
    }

    /// The functions that an instruction calls, jumps to or takes the address of.
    fn named_by(&self, instruction: &Instruction) -> Vec<Id> {
        if instruction.is_ip_rel_memory_operand() {
            let at = instruction.ip_rel_memory_address();
            if instruction.mnemonic() == Mnemonic::Lea {
                return self.function_at(at).map_or_else(|| self.table(at).collect(), |id| vec![id]);
            }
            return match self.pointer(at) {
                Some(Pointer::To(to)) => self.function_at(to).map_or_else(|| self.table(to).collect(), |id| vec![id]),
                Some(Pointer::Import(id)) => vec![id],
                None => Vec::new(),
            };
        }
        let is_branch = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::NearBranch64);
        if is_branch { self.function_at(instruction.near_branch_target()).into_iter().collect() } else { Vec::new() }
    }

    /// The function that begins at `address`, or the target of a stub there.
    fn function_at(&self, address: u64) -> Option<Id> {
        self.by_address.get(&address).copied().or_else(|| {
            if !self.is_code(address) || self.is_inside_a_function(address) {
                return None;
            }
            let stub = self.decode(address..address + 16);
            let jump = stub.iter().find(|instruction| instruction.flow_control() != FlowControl::Next)?;
            let is_jump = jump.flow_control() == FlowControl::IndirectBranch && jump.is_ip_rel_memory_operand();
            is_jump.then(|| self.pointer(jump.ip_rel_memory_address())).flatten().and_then(|at| self.function(at))
        })
    }

    fn is_inside_a_function(&self, address: u64) -> bool {
        let before = self.by_address.range(..=address).next_back();
        before.is_some_and(|(_, &id)| self.functions[id].code.contains(&address))
    }

    /// Whether the contents of `register` before the instruction at `index` are known: loaded from a known place, or
    /// from a place on the stack where nothing else is ever stored.
    fn is_known(&self, code: &[Instruction], index: usize, register: Register) -> bool {
        let sets = |instruction: &Instruction| {
            instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == register
        };
        let Some(set) = code[..index].iter().rev().find(|instruction| sets(instruction)) else { return false };
        if !matches!(set.mnemonic(), Mnemonic::Mov | Mnemonic::Lea) {
            return false;
        }
        let place = |instruction: &Instruction| (instruction.memory_base(), instruction.memory_displacement64());
        let is_stack = |instruction: &Instruction| [Register::RSP, Register::RBP].contains(&instruction.memory_base());
        if set.mnemonic() == Mnemonic::Lea || !is_stack(set) {
            return set.is_ip_rel_memory_operand() && !self.named_by(set).is_empty();
        }
        let puts_there = |(_, other): &(usize, &Instruction)| {
            other.op0_kind() == OpKind::Memory && other.mnemonic() == Mnemonic::Mov && place(other) == place(set)
        };
        let mut puts = code.iter().enumerate().filter(puts_there).peekable();
        puts.peek().is_some()
            && puts.all(|(at, put)| {
                put.op1_kind() == OpKind::Register && at < index && self.is_known(code, at, put.op1_register())
            })
    }
}

/// A symbol's name as in the source, without the hash.
fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

/// The functions reachable from the roots.
pub(crate) struct Reached<'p, 'a> {
    program: &'p Program<'a>,
    /// For each function, its caller on the shortest path.
    callers: BTreeMap<Id, Option<Id>>,
    /// All functions, the nearest first.
    pub(crate) order: Vec<Id>,
    /// Those with calls whose target the machine code does not name.
    pub(crate) dynamic: Vec<Id>,
    /// Those that touch thread-local memory.
    pub(crate) thread_local: Vec<Id>,
}

impl<'p> Reached<'p, '_> {
    /// The path back from `function` to a root.
    pub(crate) fn way_back(&self, function: Id) -> impl Iterator<Item = &'p str> {
        let program = self.program;
        std::iter::successors(Some(function), |at| self.callers[at]).map(|id| program.functions[id].name.as_str())
    }

    /// The path from a root to `function`, one name on each line.
    pub(crate) fn way_to(&self, function: Id) -> String {
        let mut names: Vec<_> = self.way_back(function).collect();
        names.reverse();
        names.join("\n      → ")
    }
}
