//! Parses whole numbers, with error messages in the style of the command line.

use std::str::FromStr;

pub(super) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "write a whole number, such as 2".to_owned())
}
