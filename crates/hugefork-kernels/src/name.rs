//! Prints and parses kernels: `order/primitive`, and for the hybrid order `hybrid/far+near@window`.
//!
//! `HUGEFORK_KERNEL`, reports and benches use these names, so they are stable. Printing gives the
//! full name; every machine that has the primitives of a printed name parses this name into an
//! equal kernel. `near` and `window` are optional.
//!
//! This module also parses the names of orders and primitives, because its errors list the valid names.

use core::{fmt, str::FromStr};

use crate::{
    error::{KernelError, NamePart},
    kernel::Kernel,
    order::Order,
    primitive::Primitive,
    primitive_name::PrimitiveName,
};

/// Units of a window's size, the largest first.
const UNITS: [(&str, usize); 2] = [("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.order(), self.far())?;
        if self.order() != Order::Hybrid {
            return Ok(());
        }
        let window = self.window();
        // A window is a multiple of 4 KiB, so a whole number of KiB always exists.
        let (unit, bytes) = if window.is_multiple_of(UNITS[0].1) { UNITS[0] } else { UNITS[1] };
        write!(f, "+{}@{}{unit}", self.near(), window / bytes)
    }
}

impl FromStr for Kernel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Kernel, KernelError> {
        let form = || KernelError::unknown(NamePart::Form, name);
        let (order, rest) = name.split_once('/').ok_or_else(form)?;
        let order: Order = order.parse()?;
        let (rest, window) = split_optional(rest, '@');
        let (far, near) = split_optional(rest, '+');
        if order != Order::Hybrid && (near.is_some() || window.is_some()) {
            return Err(form());
        }
        let mut kernel = Kernel::new(order, far.parse()?);
        if let Some(near) = near {
            kernel = kernel.with_near(near.parse()?)?;
        }
        if let Some(window) = window {
            kernel = kernel.with_window(parse_size(window)?)?;
        }
        Ok(kernel)
    }
}

impl FromStr for Order {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Order, KernelError> {
        let found = Order::ALL.iter().find(|order| order.name() == name);
        found.copied().ok_or_else(|| KernelError::unknown(NamePart::Order, name))
    }
}

impl FromStr for PrimitiveName {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<PrimitiveName, KernelError> {
        let found = PrimitiveName::ALL.iter().find(|primitive| primitive.as_str() == name);
        found.copied().ok_or_else(|| KernelError::unknown(NamePart::Primitive, name))
    }
}

impl FromStr for Primitive {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Primitive, KernelError> {
        let name = name.parse()?;
        Primitive::new(name).ok_or(KernelError::Unavailable(name))
    }
}

fn split_optional(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

pub(crate) fn parse_size(text: &str) -> Result<usize, KernelError> {
    UNITS
        .iter()
        // A number without a unit means bytes.
        .chain([&("", 1)])
        .find_map(|(unit, bytes)| {
            let number = text.strip_suffix(unit)?;
            // The check for a digit is needed because `parse` would accept a sign.
            let number = number.starts_with(|c: char| c.is_ascii_digit()).then_some(number)?;
            number.parse::<usize>().ok()?.checked_mul(*bytes)
        })
        .ok_or_else(|| KernelError::unknown(NamePart::Window, text))
}
