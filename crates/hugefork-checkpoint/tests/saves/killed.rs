//! Saves that are killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use hugefork::Pool;
use hugefork_checkpoint::{Part, Since, load, save, save_since};

use super::{Folder, files, pool, write};

const LEN: usize = 4 << 20;

/// Set for the child: the directory that it saves to.
const DIRECTORY: &str = "HUGEFORK_TEST_SAVES_TO";

/// The work of the child: it saves for ever, whole arrays and changes in turn.
#[test]
fn saves_for_ever() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let pool = Pool::builder().capacity(4 * LEN).build().unwrap();
    let mut region = pool.region(LEN).unwrap();
    for turn in 1u8.. {
        write(&mut region, 0..LEN, turn);
        let first = region.snapshot().unwrap();
        let saved = save(&directory, &[Part::of("state", &first)]).unwrap();
        write(&mut region, 0..LEN / 4, 0);
        let second = region.snapshot().unwrap();
        save_since(&directory, &[Part::of("state", &second).since(&first)], Since::Save(&saved)).unwrap();
        println!("saved {turn}");
    }
}

#[test]
fn a_killed_save_leaves_a_whole_checkpoint_and_the_next_removes_its_files() {
    let pool = pool();
    for round in 0..6 {
        let folder = Folder::new();
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this)
            .args(["--exact", "killed::saves_for_ever", "--nocapture"])
            .env(DIRECTORY, &folder.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Without a reader, the child would end by itself at its next line.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.by_ref().filter(|line| line.contains("saved ")).take(2).last().unwrap();
        std::thread::sleep(Duration::from_micros(round * 2500));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut regions = load(&folder.0, &pool).unwrap();
        let bytes = regions.get_mut("state").unwrap().as_mut_slice();
        let turn = bytes[LEN - 1];
        assert!(said.ends_with("saved 2") && turn >= 2, "{said}, then {turn}");
        assert!(bytes[LEN / 4..].iter().all(|&byte| byte == turn));
        assert!(bytes[..LEN / 4].iter().all(|&byte| byte == bytes[0]) && [0, turn].contains(&bytes[0]));
        save(&folder.0, &[Part::of_bytes("text", b"hello")]).unwrap();
        assert_eq!(files(&folder.0).len(), 1);
    }
}
