//! Snapshots that are held, read and dropped.

mod dropped;
mod histories;
mod views;
