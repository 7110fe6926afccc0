//! Reads facts about a program from its ELF file.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use object::elf::{
    DT_NEEDED, DT_NULL, Dyn64, EM_AARCH64, EM_X86_64, FileHeader64, PT_INTERP, ProgramHeader64, SHT_DYNAMIC,
    SHT_DYNSYM, SHT_SYMTAB, SectionHeader64, SectionType, Sym64,
};
use object::pod::Pod;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, ReadCache, ReadRef, SectionIndex, StringTable};

/// Sanitizers: the name of the library, and a function that only this sanitizer has.
const SANITIZERS: [(&str, &str, &str); 5] = [
    ("libasan.", "__asan_init", "AddressSanitizer"),
    ("libtsan.", "__tsan_init", "ThreadSanitizer"),
    ("libmsan.", "__msan_init", "MemorySanitizer"),
    ("libhwasan.", "__hwasan_init", "HWAddressSanitizer"),
    ("liblsan.", "__lsan_init", "LeakSanitizer"),
];

/// The section that every Go program has.
const GO_SECTION: &[u8] = b".go.buildinfo";

/// Maximum length of a loader's path in the kernel, with the terminating zero.
const LONGEST_PATH: u64 = 4096;
/// Maximum length of a file name.
const LONGEST_NAME: usize = 255;
/// More libraries than any program needs.
const MOST_LIBRARIES: usize = 4096;

/// The facts about an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// Whether a library of this machine's architecture can be loaded into it.
    pub(super) is_of_this_machine: bool,
    /// The loader of the image and its libraries; `None` for static linking.
    pub(super) loader: Option<String>,
    /// The names of the libraries that it needs.
    pub(super) needs: Vec<String>,
    /// The functions among [`SANITIZERS`] that it contains, and `malloc`.
    pub(super) has: Vec<String>,
    /// Whether it was built by Go.
    pub(super) is_go: bool,
}

impl Image {
    /// Reads an image; `None` if it is unreadable or not a valid ELF file.
    pub(super) fn read(path: &Path) -> Option<Image> {
        Image::of(File::open(path).ok()?)
    }

    /// The same for any reader. No part is read twice, whatever the headers claim.
    pub(super) fn of(file: impl Read + Seek) -> Option<Image> {
        let cache = ReadCache::new(file);
        let class = (&cache).read_bytes_at(0, 6).ok()?;
        // The fifth byte means 64 bits, the sixth little-endian.
        if !class.starts_with(b"\x7fELF") || class[4..6] != [2, 1] {
            return class.starts_with(b"\x7fELF").then(Image::default);
        }
        let header = FileHeader64::parse(&cache).ok()?;
        let endian = header.endian().ok()?;
        let machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
        // Like the kernel, which uses the first such header.
        let is_loader = |part: &&ProgramHeader64<Endianness>| part.p_type(endian) == PT_INTERP;
        let loader = match header.program_headers(endian, &cache).ok()?.iter().find(is_loader) {
            Some(part) if part.p_filesz(endian) > LONGEST_PATH => return None,
            Some(part) => Some(part.interpreter(endian, &cache).ok()??),
            None => None,
        };
        let sections = Sections { endian, cache: &cache, headers: header.section_headers(endian, &cache).ok()? };
        let (dynamic, names) = sections.entries::<Dyn64<Endianness>>(SHT_DYNAMIC)?;
        let dynamic = dynamic.iter().take_while(|entry| entry.d_tag(endian) != DT_NULL);
        let needed = dynamic.filter(|entry| entry.d_tag(endian) == DT_NEEDED);
        let needs = needed.filter_map(|entry| name(names, entry.d_val(endian))).take(MOST_LIBRARIES);
        let mut has = sections.telling_functions(SHT_DYNSYM)?;
        // A statically linked sanitizer also defines malloc; it has no other mark.
        if has.iter().any(|name| name == "malloc") {
            has.extend(sections.telling_functions(SHT_SYMTAB)?);
        }
        let is_go = !sections.headers.is_empty() && {
            let names = sections.data(header.section_strings_index(endian, &cache).ok()?)?;
            sections.headers.iter().any(|section| name(names, section.sh_name(endian).into()) == Some(GO_SECTION))
        };
        let owned = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        Some(Image {
            is_of_this_machine: header.e_machine(endian) == machine,
            loader: loader.map(owned),
            needs: needs.map(owned).collect(),
            has,
            is_go,
        })
    }

    /// The sanitizer that is built into the program.
    pub(super) fn sanitizer(&self) -> Option<&'static str> {
        let is_there = |(library, function, _): &&(&str, &str, &str)| {
            self.needs.iter().any(|name| name.starts_with(library)) || self.has.iter().any(|name| name == function)
        };
        SANITIZERS.iter().find(is_there).map(|(_, _, name)| *name)
    }
}

/// The sections of a file. Each is read as a whole, so a symbol lookup needs no further call or memory.
struct Sections<'data, R: Read + Seek> {
    endian: Endianness,
    cache: &'data ReadCache<R>,
    headers: &'data [SectionHeader64<Endianness>],
}

impl<'data, R: Read + Seek> Sections<'data, R> {
    fn data(&self, section: SectionIndex) -> Option<&'data [u8]> {
        self.headers.get(section.0)?.data(self.endian, self.cache).ok()
    }

    /// The entries of the first section of that type, and the strings that they refer to; `None` without such a
    /// section.
    fn entries<T: Pod>(&self, kind: SectionType) -> Option<(&'data [T], &'data [u8])> {
        let Some(section) = self.headers.iter().find(|section| section.sh_type(self.endian) == kind) else {
            return Some((&[], &[]));
        };
        let entries = section.data_as_array(self.endian, self.cache).ok()?;
        Some((entries, self.data(section.link(self.endian))?))
    }

    /// The functions of [`SANITIZERS`], and `malloc`, that a symbol table defines, each once.
    fn telling_functions(&self, table: SectionType) -> Option<Vec<String>> {
        let (symbols, names) = self.entries::<Sym64<Endianness>>(table)?;
        let strings = StringTable::new(names, 0, names.len() as u64);
        let mut functions: Vec<String> = Vec::new();
        for symbol in symbols {
            let name = name(names, symbol.st_name(self.endian).into());
            let Some(name) = name.and_then(|name| str::from_utf8(name).ok()).filter(|name| is_telling(name)) else {
                continue;
            };
            if symbol.is_definition(self.endian, strings) && functions.iter().all(|other| other != name) {
                functions.push(name.to_owned());
            }
        }
        Some(functions)
    }
}

/// The name at an offset of a string table; `None` if it is longer than any that is searched for.
fn name(strings: &[u8], at: u64) -> Option<&[u8]> {
    let from = strings.get(usize::try_from(at).ok()?..)?;
    let most = &from[..from.len().min(LONGEST_NAME + 1)];
    Some(&most[..most.iter().position(|byte| *byte == 0)?])
}

fn is_telling(name: &str) -> bool {
    name == "malloc" || SANITIZERS.iter().any(|(_, function, _)| *function == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_recognised_as_a_program_of_this_machine() {
        let image = Image::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.is_of_this_machine && image.loader.is_some() && !image.is_go, "{image:?}");
        assert!(image.needs.iter().any(|name| name.starts_with("libc.so")), "{image:?}");
        assert_eq!(image.sanitizer(), None);
    }

    #[test]
    fn other_files_are_not_images() {
        assert_eq!(Image::read(Path::new("/etc/passwd")), None);
        assert_eq!(Image::read(Path::new("/no/such/file")), None);
    }
}
