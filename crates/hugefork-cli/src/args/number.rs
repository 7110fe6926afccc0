//! Whole numbers, refused in the words of the command line and not in those of the standard library.

use std::str::FromStr;

pub(super) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number, such as 2".to_owned())
}
