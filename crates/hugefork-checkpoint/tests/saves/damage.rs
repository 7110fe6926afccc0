//! Files that were altered, byte by byte.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hugefork_checkpoint::{Checkpoint, CheckpointError, Part, Since, load, save, save_since};

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
