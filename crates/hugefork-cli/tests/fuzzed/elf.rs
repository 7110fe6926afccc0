//! Builds small ELF files by elf(5). They cannot run.

/// The functions that reveal a property of a program.
pub(super) const FUNCTIONS: [&str; 6] =
    ["malloc", "__asan_init", "__tsan_init", "__msan_init", "__hwasan_init", "__lsan_init"];

/// Maximum number of names, and maximum bytes of each.
const NAMES: usize = 60;
const LONGEST: usize = 255;

/// The facts that an ELF file states.
#[derive(Debug, Default)]
pub(super) struct Elf {
    pub(super) is_of_this_machine: bool,
    pub(super) loader: Option<Vec<u8>>,
    pub(super) needs: Vec<Vec<u8>>,
    /// Dynamic symbols that it defines.
    pub(super) defines: Vec<Vec<u8>>,
    /// Dynamic symbols that it needs from others.
    pub(super) wants: Vec<Vec<u8>>,
    /// Symbols for debuggers, which `strip` removes.
    pub(super) keeps: Vec<Vec<u8>>,
    pub(super) is_go: bool,
}

impl Elf {
    /// Decodes bytes: one byte of flags, then zero-terminated names, of which the first byte selects the list. A name
    /// of one more byte is one of [`FUNCTIONS`].
    pub(super) fn said_by(bytes: &[u8]) -> Elf {
        let (whole, names) = bytes.split_first().unwrap_or((&0, &[]));
        let mut elf = Elf { is_of_this_machine: whole & 1 != 0, is_go: whole & 2 != 0, ..Elf::default() };
        for said in names.split(|byte| *byte == 0).take(NAMES) {
            let Some((whose, name)) = said.split_first() else { continue };
            let name = match name {
                [one] => FUNCTIONS[usize::from(*one) % FUNCTIONS.len()].as_bytes(),
                more => &more[..more.len().min(LONGEST)],
            };
            match whose % 5 {
                0 => elf.loader = Some(name.to_vec()),
                1 => elf.needs.push(name.to_vec()),
                2 => elf.defines.push(name.to_vec()),
                3 => elf.wants.push(name.to_vec()),
                _ => elf.keeps.push(name.to_vec()),
            }
        }
        elf
    }

    /// The file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut name = |name: &[u8]| {
            let at = names.len();
            names.extend([name, b"\0"].concat());
            at as u64
        };
        // A symbol: its name, a global function, and its section; the first symbol is empty.
        let symbol = |name: u64, section: u16| {
            let mut bytes = (name as u32).to_le_bytes().to_vec();
            bytes.extend([0x12, 0]);
            bytes.extend(section.to_le_bytes());
            bytes.extend([0; 16]);
            bytes
        };
        let mut dynamic = Vec::new();
        for needed in &self.needs {
            dynamic.extend(numbers(&[1, name(needed)]));
        }
        dynamic.extend(numbers(&[0, 0]));
        let mut symbols = vec![0; 24];
        self.wants.iter().for_each(|wanted| symbols.extend(symbol(name(wanted), 0)));
        self.defines.iter().for_each(|defined| symbols.extend(symbol(name(defined), 1)));
        let mut kept = vec![0; 24];
        self.keeps.iter().for_each(|defined| kept.extend(symbol(name(defined), 1)));
        let go = if self.is_go { name(b".go.buildinfo") } else { 0 };

        let mut file = vec![0; 64];
        let mut put = |part: &[u8]| {
            let at = file.len();
            file.extend(part);
            file.resize(file.len().next_multiple_of(8), 0);
            [at as u64, part.len() as u64]
        };
        let loader = self.loader.as_ref().map(|name| put(&[name.as_slice(), b"\0"].concat()));
        let program = loader.map(|[at, len]| put(&numbers(&[3, at, 0, 0, len, len, 1])));
        let sections = [
            (0, 0, [0, 0], 0, 0),
            (0, 3, put(&names), 0, 0),
            (0, 6, put(&dynamic), 1, 16),
            (0, 11, put(&symbols), 1, 24),
            (0, 2, put(&kept), 1, 24),
            (go, 1, [64, 0], 0, 0),
        ];
        let of_sections: Vec<u8> = sections
            .iter()
            .flat_map(|(name, kind, [at, len], link, each)| {
                numbers(&[name | kind << 32, 0, 0, *at, *len, *link, 8, *each])
            })
            .collect();
        let [sections_at, _] = put(&of_sections);

        let machine: u16 = match (self.is_of_this_machine, cfg!(target_arch = "aarch64")) {
            (true, true) => 183,
            (true, false) => 62,
            // The number of the i386 architecture.
            (false, _) => 3,
        };
        let shorts = [64, 56, u16::from(program.is_some()), 64, sections.len() as u16, 1];
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        header.extend([3_u16, machine].map(u16::to_le_bytes).concat());
        header.extend(1_u32.to_le_bytes());
        header.extend(numbers(&[0, program.map_or(0, |[at, _]| at), sections_at]));
        header.extend(0_u32.to_le_bytes());
        header.extend(shorts.map(u16::to_le_bytes).concat());
        file[..64].copy_from_slice(&header);
        file
    }
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
