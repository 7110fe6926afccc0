//! The terminal: pictures on it, and keys from it. Nothing here knows of snapshots.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Pause,
    By(isize),
    First,
    Last,
    Anywhere,
    Throw,
    Quit,
}

/// A terminal that shows pictures and delivers each key at once. The drop restores the terminal, also after an error or
/// a panic. Ctrl-C arrives as a key, so it quits by the drop, too.
pub(crate) struct Screen {
    before: Termios,
    has_colours: bool,
}

impl Screen {
    /// Takes over the terminal. `None` if standard input or output is no terminal.
    pub(crate) fn open() -> io::Result<Option<Screen>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_plain = has("NO_COLOR") || std::env::var_os("TERM").is_none_or(|name| name == "dumb");
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let screen = Screen { before, has_colours: !is_plain };
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        screen.write("\x1b[?1049h\x1b[?25l")?; // another screen, and no cursor
        Ok(Some(screen))
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// The key that is pressed within `wait`, if any. `Quit` if the terminal is gone.
    pub(crate) fn key(&self, wait: Duration) -> io::Result<Option<Key>> {
        let stdin = io::stdin();
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&wait))? == 0 {
            return Ok(None);
        }
        let mut bytes = [0; 32];
        let count = rustix::io::read(&stdin, &mut bytes)?;
        let bytes = &bytes[..count];
        if bytes.is_empty() || bytes == b"\x1b" || bytes.iter().any(|byte| b"q\x03\x04".contains(byte)) {
            return Ok(Some(Key::Quit));
        }
        // The bytes may be those of several keys; only the first key counts.
        let keys: [(&[&[u8]], Key); 10] = [
            (&[b" "], Key::Pause),
            (&[b"\x1b[D", b"\x1bOD", b"h"], Key::By(-1)),
            (&[b"\x1b[C", b"\x1bOC", b"l"], Key::By(1)),
            (&[b"\x1b[A", b"\x1bOA", b"k"], Key::By(-100)),
            (&[b"\x1b[B", b"\x1bOB", b"j"], Key::By(100)),
            (&[b"\x1b[H", b"\x1bOH", b"\x1b[1~"], Key::First),
            (&[b"\x1b[F", b"\x1bOF", b"\x1b[4~"], Key::Last),
            (&[b"r"], Key::Anywhere),
            (&[b"t"], Key::Throw),
            (&[b"Q"], Key::Quit),
        ];
        Ok(keys.into_iter().find(|(names, _)| names.iter().any(|name| bytes.starts_with(name))).map(|(_, key)| key))
    }

    /// Shows a picture of cells, with `lines` below it. One character shows two columns and four rows of cells.
    pub(crate) fn show(&self, lines: &[String], cell: impl Fn(usize, usize) -> u8) -> io::Result<()> {
        let (columns, rows) = self.size();
        let mut text = String::from("\x1b[H");
        let mut colour = 0;
        for row in 0..rows.saturating_sub(lines.len()) {
            for column in 0..columns {
                let (dots, heat) = self.dots(column * 2, row * 4, &cell);
                if self.has_colours && dots != BLANK && colour != EMBERS[heat] {
                    colour = EMBERS[heat];
                    let _ = write!(text, "\x1b[38;5;{colour}m");
                }
                text.push(dots);
            }
            text.push_str("\r\n");
        }
        text.push_str(if self.has_colours { "\x1b[0m" } else { "" });
        let lines: Vec<String> = lines.iter().map(|line| line.chars().take(columns).collect()).collect();
        text.push_str(&lines.join("\x1b[K\r\n"));
        text.push_str("\x1b[K");
        self.write(&text)
    }

    /// The character for eight cells, and the heat of the hottest of them. On a terminal with colours, embers are
    /// drawn, too.
    fn dots(&self, x: usize, y: usize, cell: impl Fn(usize, usize) -> u8) -> (char, usize) {
        // The column and row of the dot that each bit of a braille character sets.
        const BITS: [(usize, usize); 8] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
        let coldest = if self.has_colours { 1 } else { HOTTEST };
        let (mut dots, mut hottest) = (0, 0);
        for (bit, (right, down)) in BITS.into_iter().enumerate() {
            let heat = usize::from(cell(x + right, y + down));
            dots |= u32::from(heat >= coldest) << bit;
            hottest = heat.max(hottest);
        }
        (char::from_u32(u32::from(BLANK) + dots).unwrap_or(BLANK), hottest.min(HOTTEST))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody could be told if it failed.
        let _ = self.write("\x1b[0m\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The braille character without a dot.
const BLANK: char = '\u{2800}';

/// Colours of a 256-colour terminal for cells, from dead to living.
const EMBERS: [u8; HOTTEST + 1] = [0, 234, 235, 52, 88, 124, 166, 208, 230];
const HOTTEST: usize = 8;
