//! Files that were altered, byte by byte.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use hugefork_checkpoint::{Checkpoint, CheckpointError, Part, Since, load, save, save_since};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{BLOCK, Folder, files, pool, write};

/// All files of a checkpoint with a change, in which an array has few bytes.
fn all_files(folder: &Folder, pool: &hugefork::Pool) -> Vec<PathBuf> {
    let mut region = pool.region(BLOCK).unwrap();
    write(&mut region, 0..9, 1);
    let first = region.snapshot().unwrap();
    let saved = save(&folder.0, &[Part::of_range("w", &first, 0..8200)]).unwrap();
    write(&mut region, 8190..9000, 2);
    let second = region.snapshot().unwrap();
    save_since(&folder.0, &[Part::of_range("w", &second, 4097..8200).since(&first)], Since::Save(&saved)).unwrap();
    assert_eq!(files(&folder.0), ["w.2.npy"], "it is another range");
    let saved = save(&folder.0, &[Part::of_range("w", &second, 0..8200)]).unwrap();
    write(&mut region, 8195..8196, 3);
    let third = region.snapshot().unwrap();
    save_since(&folder.0, &[Part::of_range("w", &third, 0..8200).since(&second)], Since::Save(&saved)).unwrap();
    let names = files(&folder.0);
    assert_eq!(names, ["w.3.npy", "w.4.bytes.npy", "w.4.ranges.npy"]);
    let data = folder.at("data");
    names.iter().map(|name| data.join(name)).chain([folder.at("manifest.json")]).collect()
}

#[test]
fn each_flipped_byte_and_each_other_length_is_refused_and_the_file_named() {
    let (folder, pool) = (Folder::new(), pool());
    for file in all_files(&folder, &pool) {
        let whole = fs::read(&file).unwrap();
        let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
        let refused = |what: String| {
            let Err(error) = load(&folder.0, &pool) else { panic!("{}, {what}: loaded", file.display()) };
            assert!(matches!(error, CheckpointError::Altered { .. }), "{}, {what}: {error}", file.display());
            let text = error.to_string();
            // A damaged header gives another length, with which the list of changes does not agree.
            let named = if file.ends_with("manifest.json") { &file } else { &folder.at("data/w.") };
            let is_named = text.starts_with(named.to_str().unwrap());
            assert!(is_named && text.contains("load another checkpoint"), "{what}: {text}");
        };
        for (at, &byte) in whole.iter().enumerate() {
            open.write_all_at(&[byte ^ 1 << (at % 8)], at as u64).unwrap();
            refused(format!("byte {at}"));
            open.write_all_at(&[byte], at as u64).unwrap();
        }
        open.set_len(whole.len() as u64 + 1).unwrap();
        refused("one byte more".to_owned());
        for len in (0..whole.len()).rev() {
            open.set_len(len as u64).unwrap();
            refused(format!("length {len}"));
        }
        fs::remove_file(&file).unwrap();
        let error = load(&folder.0, &pool).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        fs::write(&file, &whole).unwrap();
    }
    Checkpoint::open(&folder.0).unwrap().verify().unwrap();
    assert_eq!(pool.stats().regions, 0, "what was loaded in part is gone");
}

/// The result of work that must not wait for anybody.
fn at_once<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for the other end of a FIFO")
}

#[test]
fn a_fifo_device_socket_or_directory_in_place_of_a_file_is_refused_at_once() {
    use std::os::unix::{fs::symlink, net::UnixListener};
    let folder = Folder::new();
    let files = all_files(&folder, &pool());
    let aside = folder.at("aside");
    let odd: [fn(&Path); 4] = [
        |path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        |path| symlink("/dev/zero", path).unwrap(),
        |path| drop(UnixListener::bind(path).unwrap()),
        |path| fs::create_dir(path).unwrap(),
    ];
    for (file, (nth, put)) in files.iter().flat_map(|file| iter::repeat(file).zip(odd.iter().enumerate())) {
        fs::rename(file, &aside).unwrap();
        put(file);
        let from = folder.0.clone();
        let error = at_once(move || load(&from, &pool()).unwrap_err());
        assert!(matches!(error, CheckpointError::Altered { .. }), "{error}");
        let text = error.to_string();
        let names_it = text.starts_with(&format!("{} is a FIFO, device, socket or directory", file.display()));
        assert!(names_it && text.ends_with("put the file back, or take another directory"), "{text}");
        let (from, to) = (folder.0.clone(), folder.at(&format!("since {nth}")));
        let saved = at_once(move || {
            let snapshot = pool().region(BLOCK).unwrap().snapshot().unwrap();
            save_since(&to, &[Part::of_range("w", &snapshot, 0..8200)], Since::Directory(&from)).unwrap()
        });
        assert_eq!(super::files(saved.directory()).len(), 1, "all is written");
        if file.ends_with("manifest.json") {
            let to = folder.0.clone();
            let error = at_once(move || save(&to, &[Part::of_bytes("w", b"mine")]).unwrap_err());
            assert!(matches!(error, CheckpointError::Foreign { .. }), "{error}");
            assert!(error.to_string().contains("it was replaced; save to another directory"), "{error}");
        }
        fs::remove_file(file).or_else(|_| fs::remove_dir(file)).unwrap();
        fs::rename(&aside, file).unwrap();
        fs::remove_dir_all(folder.at(&format!("since {nth}"))).unwrap();
    }
    fs::remove_file(folder.at(".lock")).unwrap();
    odd[0](&folder.at(".lock"));
    let to = folder.0.clone();
    let error = at_once(move || save(&to, &[Part::of_bytes("w", b"mine")]).unwrap_err());
    assert!(error.to_string().contains("/.lock is a FIFO"), "{error}");
    Checkpoint::open(&folder.0).unwrap().verify().unwrap();
}
