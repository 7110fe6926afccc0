//! The errors of a requested kernel. Each error's message names a remedy.
//!
//! The crate is `no_std` and allocates nothing, so an error stores an [`Excerpt`] of the offending
//! text inline.

use core::fmt;

use crate::{order::Order, primitive::Primitive, primitive_name::PrimitiveName};

/// The reason why a kernel was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    /// A part of a kernel's name is unknown.
    #[non_exhaustive]
    Unknown {
        /// The unknown part.
        part: NamePart,
        /// The text in place of that part.
        given: Excerpt,
    },
    /// This CPU, or its operating system, does not support the primitive.
    Unavailable(PrimitiveName),
    /// A window of this many bytes is not a positive multiple of 4 KiB.
    BadWindow(usize),
    /// The primitive can clear but not copy.
    CannotCopy(PrimitiveName),
    /// The primitive bypasses the cache, so it cannot write the window, whose lines must remain in the cache.
    NearNotCached(PrimitiveName),
}

impl KernelError {
    pub(crate) fn unknown(part: NamePart, given: &str) -> KernelError {
        KernelError::Unknown { part, given: Excerpt::new(given) }
    }
}

/// A part of a kernel's name, `order/far+near@window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamePart {
    /// The whole name: it does not have the form `order/primitive`.
    Form,
    /// The order: the text before the `/`.
    Order,
    /// A primitive: the text after the `/` or after the `+`.
    Primitive,
    /// The window's size: the text after the `@`.
    Window,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Unknown { part, given } => match part {
                NamePart::Form => write!(
                    f,
                    "\"{given}\" does not name a kernel: write order/primitive, for example straight/rep, \
                     and for the hybrid order also hybrid/far+near@window, for example hybrid/avx2-nt+rep@128KiB"
                ),
                NamePart::Order => {
                    write!(f, "unknown order \"{given}\": use ")?;
                    list(f, Order::ALL.iter().map(|order| order.name()))
                }
                NamePart::Primitive => {
                    write!(f, "unknown primitive \"{given}\": this machine has ")?;
                    list(f, names(Primitive::all()))?;
                    list_after(f, "; not on this machine: ", unavailable())
                }
                NamePart::Window => {
                    write!(f, "\"{given}\" is no window size: write a multiple of 4KiB as in 128KiB, 1MiB or 131072")
                }
            },
            KernelError::Unavailable(primitive) => {
                write!(f, "{primitive} needs {}, which this machine does not offer: use ", primitive.needs())?;
                list(f, names(Primitive::all()))?;
                list_after(
                    f,
                    "; not on this machine either: ",
                    unavailable().filter(|name| *name != primitive.as_str()),
                )
            }
            KernelError::BadWindow(bytes) => {
                let unit = if *bytes == 1 { "byte" } else { "bytes" };
                write!(f, "a window of {bytes} {unit} is not a positive multiple of 4KiB: use for example 128KiB")
            }
            KernelError::CannotCopy(primitive) => {
                write!(f, "{primitive} only clears: to copy use ")?;
                list(f, names(Primitive::all().filter(|primitive| primitive.can_copy())))
            }
            KernelError::NearNotCached(primitive) => {
                write!(f, "{primitive} bypasses the cache, but the window must stay in it: for the window use ")?;
                list(f, names(Primitive::all().filter(|primitive| !primitive.is_non_temporal())))
            }
        }
    }
}

impl core::error::Error for KernelError {}

fn names(primitives: impl Iterator<Item = Primitive>) -> impl Iterator<Item = &'static str> {
    primitives.map(|primitive| primitive.name().as_str())
}

/// The primitives that this machine lacks.
fn unavailable() -> impl Iterator<Item = &'static str> {
    let lacking = PrimitiveName::ALL.iter().filter(|name| Primitive::new(**name).is_none());
    lacking.map(|name| name.as_str())
}

/// Prints an introduction and a list; prints nothing if the list is empty.
fn list_after(
    f: &mut fmt::Formatter<'_>,
    introduction: &str,
    names: impl Iterator<Item = &'static str>,
) -> fmt::Result {
    let mut names = names.peekable();
    if names.peek().is_none() {
        return Ok(());
    }
    f.write_str(introduction)?;
    list(f, names)
}

fn list(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'static str>) -> fmt::Result {
    for (position, name) in names.enumerate() {
        f.write_str(if position == 0 { "" } else { ", " })?;
        f.write_str(name)?;
    }
    Ok(())
}

/// The first bytes of a text that could not be parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Excerpt {
    bytes: [u8; Excerpt::MAX],
    len: u8,
    cut: bool,
}

impl Excerpt {
    /// Maximum length in bytes: more than the longest valid part of a name has, and few enough to pass an error by
    /// value.
    const MAX: usize = 38;

    fn new(text: &str) -> Excerpt {
        let kept = &text[..text.floor_char_boundary(Excerpt::MAX)];
        let mut bytes = [0; Excerpt::MAX];
        bytes[..kept.len()].copy_from_slice(kept.as_bytes());
        Excerpt { bytes, len: kept.len() as u8, cut: kept.len() < text.len() }
    }

    /// The text, without the part that was cut off.
    pub fn as_str(&self) -> &str {
        // `new` stores whole characters, so the bytes are always valid UTF-8, and the default is never used.
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        f.write_str(if self.cut { "…" } else { "" })
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
