//! A pseudo-terminal for the command under test; the test waits for expected output.

#![allow(dead_code)] // Each test binary uses its part of it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A command without output for this long hangs, however slow the machine is.
const PATIENCE: Timespec = Timespec { tv_sec: 300, tv_nsec: 0 };

pub(crate) struct Terminal {
    ours: File,
    shown: String,
}

impl Terminal {
    /// Makes a terminal of that width; returns it and the end for the command.
    pub(crate) fn new(columns: u16) -> (Terminal, Stdio) {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs: OwnedFd = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        (Terminal { ours: ours.into(), shown: String::new() }, theirs.into())
    }

    /// Waits until `part` was printed.
    pub(crate) fn until(&mut self, part: &str) {
        while !self.shown.contains(part) {
            assert!(self.read(), "`{part}` was never shown: {}", self.shown);
        }
    }

    /// All output of a command that has ended.
    pub(crate) fn rest(mut self) -> String {
        while self.read() {}
        self.shown
    }

    /// Returns false when no process has the other end open.
    fn read(&mut self) -> bool {
        let ready = poll(&mut [PollFd::new(&self.ours, PollFlags::IN)], Some(&PATIENCE)).unwrap();
        assert!(ready > 0, "nothing shown any more after {}", self.shown);
        let mut bytes = [0; 4096];
        // A terminal reports with EIO that the other end is closed.
        let read = self.ours.read(&mut bytes).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }
}
