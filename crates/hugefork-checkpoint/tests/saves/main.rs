//! Saves and loads of checkpoints.

mod damage;
mod killed;
mod model;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use hugefork::{BlockSize, Pool, Region};
use hugefork_checkpoint::{Checkpoint, CheckpointError, Part, Save, Since, load, save, save_since};

const BLOCK: usize = 64 << 10;

/// A folder for a test, which is removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hugefork-saves-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn pool() -> Pool {
    Pool::builder().name("saves").capacity(16 << 20).block_size(BlockSize::new(BLOCK).unwrap()).build().unwrap()
}

fn files(checkpoint: &Path) -> Vec<String> {
    let names = fs::read_dir(checkpoint.join("data")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn loaded(checkpoint: &Path, name: &str, pool: &Pool) -> Vec<u8> {
    load(checkpoint, pool).unwrap().get_mut(name).unwrap().as_mut_slice().to_vec()
}

fn write(region: &mut Region, range: Range<usize>, value: u8) {
    region.as_mut_slice()[range].fill(value);
}

#[test]
fn untouched_memory_takes_no_room_on_the_disk_and_in_the_pool() {
    let (folder, pool) = (Folder::new(), pool());
    let mut region = pool.region(8 << 20).unwrap();
    write(&mut region, (4 << 20)..(4 << 20) + 5, 7);
    let mut last = (0, 0);
    let mut progress = |done, total| {
        last = (done, total);
        Ok(())
    };
    let snapshot = region.snapshot().unwrap();
    Save::to(folder.at("1")).progress(&mut progress).write(&[Part::of("state", &snapshot)]).unwrap();
    assert!(last.0 == last.1 && last.0 <= 2 << 20, "bytes that are not written are not counted: {last:?}");
    let file = fs::metadata(folder.at("1/data/state.1.npy")).unwrap();
    assert_eq!(file.len(), 128 + (8 << 20));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
    assert!(blocks < 300 << 10, "{blocks}");
    // A copy without holes is the same checkpoint.
    let bytes = fs::read(folder.at("1/data/state.1.npy")).unwrap();
    fs::write(folder.at("1/data/state.1.npy"), bytes).unwrap();
    let mut regions = load(folder.at("1"), &pool).unwrap();
    let again = regions.get_mut("state").unwrap();
    // A piece of the file lies in two huge pages, which blocks share.
    assert!(again.stats().blocks_present <= (4 << 20) / BLOCK, "{:?}", again.stats());
    assert!(again.as_mut_slice() == region.as_mut_slice());
}

#[test]
fn each_directory_is_complete_and_shares_the_files_of_the_one_before() {
    let (folder, pool) = (Folder::new(), pool());
    let mut region = pool.region(1 << 20).unwrap();
    write(&mut region, 0..1 << 20, 1);
    let mut older = region.snapshot().unwrap();
    let mut saved = save(folder.at("0"), &[Part::of("a/b", &older)]).unwrap();
    let mut expected = vec![region.as_mut_slice().to_vec()];
    for turn in 1..20 {
        write(&mut region, turn * 5000..turn * 5000 + 3, turn as u8 + 1);
        let newer = region.snapshot().unwrap();
        let to = folder.at(&turn.to_string());
        saved = save_since(&to, &[Part::of("a/b", &newer).since(&older)], Since::Save(&saved)).unwrap();
        assert_eq!(files(&to).len(), if turn == 17 { 1 } else { 1 + 2 * (turn % 17) }, "{turn}: {:?}", files(&to));
        (older, expected) = (newer, [expected, vec![region.as_mut_slice().to_vec()]].concat());
    }
    assert_eq!(saved.directory(), folder.at("19"));
    fs::remove_dir_all(folder.at("0")).unwrap();
    for (turn, expected) in expected.iter().enumerate().skip(1) {
        assert!(loaded(&folder.at(&turn.to_string()), "a/b", &pool) == *expected, "{turn}");
    }
    // Half of it has changed.
    write(&mut region, 0..1 << 19, 99);
    let newer = region.snapshot().unwrap();
    save_since(folder.at("19"), &[Part::of("a/b", &newer).since(&older)], Since::Save(&saved)).unwrap();
    assert_eq!(files(&folder.at("19")), ["a%2Fb.2.npy"]);
}

#[test]
fn a_save_goes_on_since_the_files_of_an_earlier_process() {
    let folder = Folder::new();
    let before = pool();
    let mut region = before.region(1 << 20).unwrap();
    write(&mut region, 5..1 << 19, 3);
    save(folder.at("1"), &[Part::of("state", &region.snapshot().unwrap())]).unwrap();
    drop((region, before));

    let pool = pool();
    let mut region = load(folder.at("1"), &pool).unwrap().remove("state").unwrap();
    write(&mut region, 9000..9001, 4);
    let one = folder.at("1");
    let since = Since::Directory(&one);
    let saved = save_since(folder.at("1"), &[Part::of("state", &region.snapshot().unwrap())], since).unwrap();
    assert_eq!(files(&one), ["state.1.npy", "state.2.bytes.npy", "state.2.ranges.npy"]);
    assert_eq!(fs::metadata(folder.at("1/data/state.2.bytes.npy")).unwrap().len(), 128 + 4096);
    // Nothing has changed.
    let newer = region.snapshot().unwrap();
    save_since(folder.at("2"), &[Part::of("state", &newer)], Since::Save(&saved)).unwrap();
    assert_eq!(files(&folder.at("2")), ["state.1.bytes-1.npy", "state.1.first.npy", "state.1.ranges-1.npy"]);
    assert!(loaded(&folder.at("2"), "state", &pool) == region.as_mut_slice());
    // Damaged files are not shared.
    let first = folder.at("2/data/state.1.first.npy");
    let mut bytes = fs::read(&first).unwrap();
    bytes[1000] ^= 1;
    fs::write(&first, bytes).unwrap();
    let two = folder.at("2");
    save_since(folder.at("3"), &[Part::of("state", &newer)], Since::Directory(&two)).unwrap();
    assert_eq!(files(&folder.at("3")), ["state.1.npy"]);
    assert!(loaded(&folder.at("3"), "state", &pool) == region.as_mut_slice());
}

#[test]
fn a_snapshot_that_the_save_was_not_of_is_not_believed() {
    let (folder, pool) = (Folder::new(), pool());
    let mut region = pool.region(1 << 20).unwrap();
    write(&mut region, 0..1 << 20, 1);
    let first = region.snapshot().unwrap();
    let saved = save(folder.at("1"), &[Part::of("state", &first)]).unwrap();
    write(&mut region, 0..1, 2);
    let wrong = region.snapshot().unwrap();
    let part = Part::of("state", &wrong).since(&wrong);
    save_since(folder.at("2"), &[part], Since::Save(&saved)).unwrap();
    assert!(loaded(&folder.at("2"), "state", &pool) == region.as_mut_slice());
    // The earlier checkpoint was replaced since.
    save(folder.at("1"), &[Part::of_bytes("state", &[1, 2, 3])]).unwrap();
    save_since(folder.at("3"), &[Part::of("state", &wrong).since(&first)], Since::Save(&saved)).unwrap();
    assert_eq!(files(&folder.at("3")), ["state.1.npy"]);
    // Another part of the snapshot, and another type.
    let saved = save(folder.at("4"), &[Part::of_range("state", &wrong, 0..8192)]).unwrap();
    let part = Part::of_range("state", &wrong, 4096..12288).since(&wrong);
    save_since(folder.at("4"), &[part], Since::Save(&saved)).unwrap();
    let head = *b"\x93NUMPY\x01\x00\x06\x00other\n";
    let part = Part::of_range("state", &wrong, 0..8192).since(&wrong).head(&head);
    save_since(folder.at("5"), &[part], Since::Save(&saved)).unwrap();
    assert_eq!(files(&folder.at("5")), ["state.1.npy"]);
    assert!(fs::read(folder.at("5/data/state.1.npy")).unwrap().starts_with(&head));
}

#[test]
fn all_is_written_where_links_are_impossible() {
    let (folder, pool) = (Folder::new(), pool());
    let elsewhere = Path::new("/dev/shm").join(format!("hugefork-saves-{}", std::process::id()));
    let device = |path: &Path| fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::dev(&found)).ok();
    if [None, device(&folder.0)].contains(&device(Path::new("/dev/shm"))) {
        return eprintln!("skipped: /dev/shm is not another file system");
    }
    let mut region = pool.region(1 << 20).unwrap();
    write(&mut region, 0..9, 1);
    let first = region.snapshot().unwrap();
    let saved = save(folder.at("1"), &[Part::of("state", &first)]).unwrap();
    save_since(&elsewhere, &[Part::of("state", &first).since(&first)], Since::Save(&saved)).unwrap();
    let found = (files(&elsewhere), loaded(&elsewhere, "state", &pool));
    fs::remove_dir_all(&elsewhere).unwrap();
    assert_eq!(found.0, ["state.1.npy"]);
    assert!(found.1 == region.as_mut_slice());
}

#[test]
fn a_checkpoint_may_be_replaced_while_another_save_takes_its_files() {
    let (folder, pool) = (Folder::new(), pool());
    let (one, two) = (folder.at("1"), folder.at("2"));
    let mut region = pool.region(1 << 20).unwrap();
    for round in 0..30 {
        write(&mut region, 0..1 << 20, round);
        let first = region.snapshot().unwrap();
        let saved = save(&one, &[Part::of("state", &first)]).unwrap();
        write(&mut region, 0..1, 255);
        let second = region.snapshot().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| save(&one, &[Part::of_bytes("state", &[round; 9000])]).unwrap());
            save_since(&two, &[Part::of("state", &second).since(&first)], Since::Save(&saved)).unwrap();
        });
        assert!(loaded(&two, "state", &pool) == second[..], "{:?}", files(&two));
    }
}

#[test]
fn a_checkpoint_that_is_open_keeps_its_files_until_the_save_after_it() {
    let (folder, pool) = (Folder::new(), pool());
    save(&folder.0, &[Part::of_bytes("a", b"first"), Part::of_bytes("b", b"first")]).unwrap();
    let opened = Checkpoint::open(&folder.0).unwrap();
    let copy = opened.clone();
    // More saves than any number of attempts.
    for _ in 0..12 {
        save(&folder.0, &[Part::of_bytes("a", b"later")]).unwrap();
    }
    drop(opened);
    for name in ["a", "b"] {
        assert_eq!(copy.load(name, &pool).unwrap().as_mut_slice()[..5], *b"first");
    }
    copy.verify().unwrap();
    assert_eq!(loaded(&folder.0, "a", &pool)[..5], *b"later");
    drop(copy);
    save(&folder.0, &[Part::of_bytes("a", b"last")]).unwrap();
    assert_eq!(files(&folder.0), ["a.14.npy"]);
}

#[test]
fn loads_beside_a_save_that_never_ends_are_of_one_moment() {
    let (folder, pool) = (Folder::new(), pool());
    let write_all = |turn: u8| {
        let bytes = vec![turn; 3 * BLOCK];
        let names: Vec<_> = (0..20).map(|nth| nth.to_string()).collect();
        save(&folder.0, &names.iter().map(|name| Part::of_bytes(name, &bytes)).collect::<Vec<_>>()).unwrap();
    };
    write_all(0);
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| {
            let mut seen = std::collections::HashSet::new();
            while seen.len() < 10 {
                let mut regions = load(&folder.0, &pool).unwrap().into_values();
                let turn = regions.next().unwrap().as_mut_slice()[0];
                assert!(regions.all(|mut region| region.as_mut_slice()[..3 * BLOCK].iter().all(|&byte| byte == turn)));
                seen.insert(turn);
            }
        });
        (1..=u8::MAX).cycle().take_while(|_| !loads.is_finished()).for_each(write_all);
        loads.join().unwrap();
    });
    write_all(0);
    assert_eq!(files(&folder.0).len(), 20);
}

#[test]
fn a_failed_save_leaves_the_checkpoint_before_and_names_the_file() {
    let (folder, pool) = (Folder::new(), pool());
    let path = folder.at("1");
    let mut region = pool.region(1 << 20).unwrap();
    write(&mut region, 0..1 << 20, 1);
    let snapshot = region.snapshot().unwrap();
    save(&path, &[Part::of("state", &snapshot)]).unwrap();
    let before = files(&path);
    fs::create_dir(path.join("data/w.2.npy")).unwrap();
    let error = save(&path, &[Part::of("state", &snapshot), Part::of("w", &snapshot)]).unwrap_err();
    assert!(error.to_string().contains("1/data/w.2.npy: "), "{error}");
    fs::remove_dir(path.join("data/w.2.npy")).unwrap();
    assert_eq!(files(&path), before);
    let mut pieces = 0;
    let mut stop = |done: u64, total: u64| {
        assert!(done <= total && total == 1 << 20);
        pieces += 1;
        if pieces == 3 { Err(std::io::Error::other("enough")) } else { Ok(()) }
    };
    let error = Save::to(&path).progress(&mut stop).write(&[Part::of("state", &snapshot)]).unwrap_err();
    assert!(matches!(&error, CheckpointError::Ended(why) if why.to_string() == "enough"), "{error}");
    assert_eq!(files(&path), before);
    assert!(loaded(&path, "state", &pool) == region.as_mut_slice());
    for (parts, why) in [
        (vec![Part::of_bytes("", &[])], "200 letters"),
        (vec![Part::of_bytes("a", &[]), Part::of_bytes("a", &[])], "each its own"),
        (vec![Part::of_range("a", &snapshot, 0..(1 << 20) + 1)], "does not lie in"),
    ] {
        let error = save(&path, &parts).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let error = Checkpoint::open(&path).unwrap().load("b", &pool).unwrap_err();
    assert!(error.to_string().contains("`names` lists them"), "{error}");
}

#[test]
fn parts_of_one_snapshot_get_their_changes() {
    let (folder, pool) = (Folder::new(), pool());
    let mut region = pool.region(1 << 20).unwrap();
    write(&mut region, 9..700_000, 1);
    let bounds = [0, 0, 1, 4096, 4097, 65_535, 65_536, 200_001, 699_999, 1 << 20, 1 << 20];
    let parts: Vec<_> = bounds.windows(2).enumerate().map(|(nth, pair)| (nth.to_string(), pair[0]..pair[1])).collect();
    let first = region.snapshot().unwrap();
    let whole: Vec<_> = parts.iter().map(|(name, range)| Part::of_range(name, &first, range.clone())).collect();
    let saved = save(&folder.0, &whole).unwrap();
    (4090..1 << 20).step_by(50_000).for_each(|at| write(&mut region, at..at + 9, 2));
    let second = region.snapshot().unwrap();
    let changed: Vec<_> =
        parts.iter().map(|(name, range)| Part::of_range(name, &second, range.clone()).since(&first)).collect();
    save_since(&folder.0, &changed, Since::Save(&saved)).unwrap();
    for (name, range) in &parts {
        assert!(loaded(&folder.0, name, &pool).starts_with(&second[range.clone()]), "{range:?}");
    }
    assert!(files(&folder.0).len() > 12, "{:?}", files(&folder.0));
}

#[test]
fn a_directory_that_cannot_be_read_keeps_its_checkpoint() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, pool) = (Folder::new(), pool());
    let path = folder.at("1");
    save(&path, &[Part::of_bytes("w", b"before")]).unwrap();
    let rights = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    rights(0o300);
    std::thread::scope(|scope| {
        let saves = || {
            // Also for a user who may read everything. Rights belong to a thread.
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective = rustix::thread::CapabilitySet::empty();
            rustix::thread::set_capabilities(None, sets).unwrap();
            save(&path, &[Part::of_bytes("w", b"later")])
        };
        let error = scope.spawn(saves).join().unwrap().unwrap_err();
        assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    });
    rights(0o700);
    assert!(loaded(&path, "w", &pool).starts_with(b"before"));
    assert_eq!(files(&path), ["w.1.npy"]);
}

#[test]
fn symbolic_links_are_not_written_through_and_not_shared() {
    use std::os::unix::fs::symlink;
    let (folder, pool) = (Folder::new(), pool());
    let (one, two) = (folder.at("1"), folder.at("2"));
    let region = pool.region(1 << 20).unwrap();
    let snapshot = region.snapshot().unwrap();
    fs::write(folder.at("other"), "of another program").unwrap();
    fs::create_dir(&one).unwrap();
    symlink(folder.at("other"), one.join("manifest.json.new")).unwrap();
    let saved = save(&one, &[Part::of("w", &snapshot)]).unwrap();
    assert_eq!(fs::read_to_string(folder.at("other")).unwrap(), "of another program");
    // From another directory, the link does not lead to the file.
    fs::rename(one.join("data/w.1.npy"), one.join("w")).unwrap();
    symlink("../w", one.join("data/w.1.npy")).unwrap();
    save_since(&two, &[Part::of("w", &snapshot).since(&snapshot)], Since::Save(&saved)).unwrap();
    assert_eq!(loaded(&two, "w", &pool), snapshot[..]);
}

#[test]
fn a_directory_of_another_program_is_not_changed() {
    for theirs in [
        &[("data/train.csv", "1,2")][..],
        &[("data/train.1.npy", "of no save")],
        &[("manifest.json", "{\"name\": \"an extension\"}"), ("data/w.1.npy", "of nobody")],
        &[("manifest.json", "no JSON")],
        &[("manifest.json", "{\"format\": \"hugefork-checkpoint\", \"version\": 2}")],
    ] {
        let folder = Folder::new();
        fs::create_dir(folder.at("data")).unwrap();
        theirs.iter().for_each(|(name, text)| fs::write(folder.at(name), text).unwrap());
        let error = save(&folder.0, &[Part::of_bytes("w", b"mine")]).unwrap_err();
        assert!(matches!(error, CheckpointError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("save to another directory"), "{error}");
        theirs.iter().for_each(|(name, text)| assert_eq!(fs::read_to_string(folder.at(name)).unwrap(), *text));
        assert!(!folder.at(".lock").exists());
    }
}

#[test]
fn a_full_pool_is_an_error_of_the_load() {
    let (folder, large) = (Folder::new(), pool());
    let mut region = large.region(1 << 20).unwrap();
    write(&mut region, 0..1 << 20, 1);
    save(folder.at("1"), &[Part::of("state", &region.snapshot().unwrap())]).unwrap();
    let small = Pool::builder().capacity(2 << 20).block_size(BlockSize::new(BLOCK).unwrap()).build().unwrap();
    let held = small.region(2 << 20).unwrap();
    held.populate().unwrap();
    let error = load(folder.at("1"), &small).unwrap_err();
    assert!(matches!(error, CheckpointError::Region(hugefork::RegionError::PoolFull { .. })), "{error}");
}

#[test]
fn arrays_of_few_bytes_get_a_block() {
    let (folder, pool) = (Folder::new(), pool());
    save(folder.at("1"), &[Part::of_bytes("text", b"hello"), Part::of_bytes("none", &[])]).unwrap();
    let mut regions = load(folder.at("1"), &pool).unwrap();
    assert_eq!(regions.keys().collect::<Vec<_>>(), ["none", "text"]);
    assert_eq!(regions["none"].len(), BLOCK);
    assert_eq!(regions.get_mut("text").unwrap().as_mut_slice()[..6], *b"hello\0");
    Checkpoint::open(folder.at("1")).unwrap().verify().unwrap();
}
