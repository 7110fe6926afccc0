//! The handler of faults, beside the handlers of the program.

mod foreign_faults;
mod later;
mod stack;
mod switch;
