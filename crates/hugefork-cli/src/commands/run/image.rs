//! What the ELF of a program says of it.

use std::fs::File;
use std::path::Path;

use hugefork_preload::environment::ALLOCATORS as LIBRARIES;
use object::elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, ReadRef};

/// Where `malloc` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocator {
    /// The C library has it.
    Libc,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    /// The program has one of its own.
    Own,
}

impl Allocator {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Allocator::Libc => "libc's malloc",
            Allocator::Jemalloc => "its own jemalloc",
            Allocator::Tcmalloc => "its own tcmalloc",
            Allocator::Mimalloc => "its own mimalloc",
            Allocator::Own => "its own malloc",
        }
    }
}

/// Allocators, by the names of their libraries, and by a function that nobody else has.
const ALLOCATORS: [(&str, &[&str], Allocator); 3] = [
    (LIBRARIES[0], &["mallctl", "je_mallctl"], Allocator::Jemalloc),
    (LIBRARIES[1], &["tc_malloc", "MallocExtension_GetNumericProperty"], Allocator::Tcmalloc),
    (LIBRARIES[2], &["mi_malloc"], Allocator::Mimalloc),
];

/// Sanitizers, likewise.
const SANITIZERS: [(&str, &str, &str); 5] = [
    ("libasan.", "__asan_init", "AddressSanitizer"),
    ("libtsan.", "__tsan_init", "ThreadSanitizer"),
    ("libmsan.", "__msan_init", "MemorySanitizer"),
    ("libhwasan.", "__hwasan_init", "HWAddressSanitizer"),
    ("liblsan.", "__lsan_init", "LeakSanitizer"),
];

/// What is known of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// Whether this machine's own library can be put into it.
    pub(super) is_of_this_machine: bool,
    /// What loads it and its libraries; none if it is linked statically.
    pub(super) loader: Option<String>,
    /// The libraries that it needs.
    pub(super) needs: Vec<String>,
    /// The functions of [`ALLOCATORS`] and [`SANITIZERS`] that it has itself, and `malloc`.
    pub(super) has: Vec<String>,
    /// Whether Go has built it.
    pub(super) is_go: bool,
}

impl Image {
    /// Reads an image; none if nobody may read it, or it makes no sense.
    pub(super) fn read(path: &Path) -> Option<Image> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let class = (&cache).read_bytes_at(0, 6).ok()?;
        // The fifth byte says 64 bits, the sixth which end comes first.
        if !class.starts_with(b"\x7fELF") || class[4..6] != [2, 1] {
            return class.starts_with(b"\x7fELF").then(Image::default);
        }
        let file = ElfFile::<FileHeader64<Endianness>, _>::parse(&cache).ok()?;
        let endian = file.endian();
        let machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
        let headers = file.elf_program_headers();
        let loader = headers.iter().find_map(|header| header.interpreter(endian, file.data()).ok()?);
        let dynamic = file.elf_dynamic_table().ok()?;
        let needed = dynamic.iter().filter(|entry| entry.tag == DT_NEEDED);
        let names = needed.filter_map(|entry| dynamic.string(entry).ok());
        let defined = |symbol: object::read::elf::ElfSymbol<'_, '_, FileHeader64<Endianness>, _>| {
            let name = symbol.name().ok().filter(|name| symbol.is_definition() && is_telling(name))?;
            Some(name.to_owned())
        };
        let mut has: Vec<String> = file.dynamic_symbols().filter_map(defined).collect();
        // Only then is it worth to look which one it is.
        if has.iter().any(|name| name == "malloc") {
            has.extend(file.symbols().filter_map(defined));
        }
        Some(Image {
            is_of_this_machine: file.elf_header().e_machine(endian) == machine,
            loader: loader.map(|name| String::from_utf8_lossy(name).into_owned()),
            needs: names.map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
            has,
            is_go: file.section_by_name(".go.buildinfo").is_some(),
        })
    }

    /// Where its `malloc` comes from.
    pub(super) fn allocator(&self) -> Allocator {
        let has = |function: &&str| self.has.iter().any(|name| name == function);
        let needs = |library: &str| self.needs.iter().any(|name| name.starts_with(library));
        let known = ALLOCATORS.iter().find(|(library, functions, _)| needs(library) || functions.iter().any(has));
        match known {
            Some((_, _, allocator)) => *allocator,
            None if has(&"malloc") => Allocator::Own,
            None => Allocator::Libc,
        }
    }

    /// The sanitizer that watches it.
    pub(super) fn sanitizer(&self) -> Option<&'static str> {
        let is_there = |(library, function, _): &&(&str, &str, &str)| {
            self.needs.iter().any(|name| name.starts_with(library)) || self.has.iter().any(|name| name == function)
        };
        SANITIZERS.iter().find(is_there).map(|(_, _, name)| *name)
    }
}

fn is_telling(name: &str) -> bool {
    name == "malloc"
        || ALLOCATORS.iter().any(|(_, functions, _)| functions.contains(&name))
        || SANITIZERS.iter().any(|(_, function, _)| *function == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_of_this_machine_with_libcs_malloc() {
        let image = Image::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.is_of_this_machine && image.loader.is_some() && !image.is_go, "{image:?}");
        assert!(image.needs.iter().any(|name| name.starts_with("libc.so")), "{image:?}");
        assert_eq!((image.allocator(), image.sanitizer()), (Allocator::Libc, None));
    }

    #[test]
    fn allocators_are_known_by_library_and_by_function() {
        let needs = |name: &str| Image { needs: vec![name.to_owned()], ..Image::default() }.allocator();
        assert_eq!(needs("libjemalloc.so.2"), Allocator::Jemalloc);
        assert_eq!(needs("libtcmalloc_minimal.so.4"), Allocator::Tcmalloc);
        assert_eq!(needs("libmimalloc.so.2"), Allocator::Mimalloc);
        assert_eq!(needs("libm.so.6"), Allocator::Libc);
        let has =
            |name: &str| Image { has: vec!["malloc".to_owned(), name.to_owned()], ..Image::default() }.allocator();
        assert_eq!(has("mallctl"), Allocator::Jemalloc);
        assert_eq!(has("mi_malloc"), Allocator::Mimalloc);
        assert_eq!(has("free"), Allocator::Own);
    }

    #[test]
    fn what_is_no_image_is_none() {
        assert_eq!(Image::read(Path::new("/etc/passwd")), None);
        assert_eq!(Image::read(Path::new("/no/such/file")), None);
    }
}
