//! Tests of folders only: locks, leftovers of killed writers, full and read-only disks.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ronde_core::Recovery;
use ronde_store::{Condition, LocalStore, Store, StoreError, StoreExt, UnusableCause};

use crate::{name, pattern};

#[test]
fn waiting_for_a_held_lock_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path()).with_lock_limit(Duration::from_millis(50));
    store.put_if(&name("x"), b"1", &Condition::Absent).unwrap();
    let holder = File::open(folder.path().join(".ronde.lock")).unwrap();
    holder.lock().unwrap();
    let error = store
        .put_if(&name("y"), b"1", &Condition::Absent)
        .unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert_eq!(error.recovery(), Recovery::Retry);
    drop(holder);
    store.put_if(&name("y"), b"1", &Condition::Absent).unwrap();
}

#[test]
fn leftovers_are_swept_unless_their_writer_lives() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    let mut living = store.create(&name("a/living")).unwrap();
    living.write(b"half").unwrap();
    std::fs::write(folder.path().join("a/.tmp-ronde-dead"), b"half").unwrap();
    std::fs::write(folder.path().join("a/.somebody-elses"), b"x").unwrap();
    assert_eq!(store.sweep().unwrap(), 1);
    assert!(store.list(None).unwrap().is_empty());
    living.publish().unwrap();
    assert_eq!(store.get(&name("a/living"), 10).unwrap(), b"half");
    assert!(folder.path().join("a/.somebody-elses").exists());
}

#[test]
fn the_first_write_to_a_folder_removes_leftovers_of_ended_writers() {
    let folder = tempfile::tempdir().unwrap();
    let another = LocalStore::new(folder.path());
    let mut living = another.create(&name("living")).unwrap();
    let dead = folder.path().join(".tmp-ronde-dead");
    std::fs::write(&dead, b"half").unwrap();
    let store = LocalStore::new(folder.path());
    store
        .put_if(&name("state"), b"1", &Condition::Absent)
        .unwrap();
    assert!(!dead.exists());
    living.write(b"whole").unwrap();
    living.publish().unwrap();
    assert_eq!(store.get(&name("living"), 10).unwrap(), b"whole");
}

#[test]
fn empty_folders_go_with_their_last_object() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    store.put(&name("a/b/c"), b"1").unwrap();
    store.put(&name("a/d"), b"1").unwrap();
    store.delete(&name("a/b/c")).unwrap();
    assert!(!folder.path().join("a/b").exists());
    assert!(folder.path().join("a/d").exists());
    store.delete(&name("a/d")).unwrap();
    assert!(!folder.path().join("a").exists());
    assert!(folder.path().exists());
}

#[test]
fn file_permissions_follow_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    store.put(&name("x"), b"1").unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, b"1").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&folder.path().join("x")), mode(&plain));
}

#[test]
fn a_folder_instead_of_a_file_and_a_missing_folder_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    store.put(&name("a/b"), b"1").unwrap();
    let error = store.open(&name("a")).err().unwrap().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let error = store.put(&name("a/b/c"), b"1").unwrap_err().to_string();
    assert!(error.contains("a/b"), "{error}");
    let nowhere = LocalStore::new(folder.path().join("nowhere"));
    assert!(nowhere.list(None).unwrap().is_empty());
    assert_eq!(nowhere.sweep().unwrap(), 0);
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn listings_of_user_folders_follow_links() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("deep/er")).unwrap();
    std::fs::create_dir_all(data.join(".hidden")).unwrap();
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    for path in [
        "data/a b.txt",
        "data/deep/er/c",
        "data/.hidden/d",
        "data/.e",
        "elsewhere/f",
    ] {
        std::fs::write(folder.path().join(path), path).unwrap();
    }
    symlink("../elsewhere/f", data.join("linked file")).unwrap();
    symlink("../elsewhere", data.join("linked")).unwrap();
    symlink("..", data.join("deep/circle")).unwrap();
    let names = |store: &LocalStore| -> Vec<String> {
        let entries = store.list(None).unwrap();
        entries.iter().map(|entry| entry.name.to_string()).collect()
    };
    let plain = LocalStore::new(&data);
    assert_eq!(names(&plain), ["a b.txt", "deep/er/c"]);
    let following = plain.clone().following_links();
    assert_eq!(
        names(&following),
        ["a b.txt", "deep/er/c", "linked file", "linked/f"]
    );
    assert_eq!(
        following.get(&name("linked/f"), 100).unwrap(),
        b"elsewhere/f"
    );
    let some = following
        .list_files(None, &mut |folder| folder != "deep")
        .unwrap();
    assert_eq!(some.entries.len(), 3);
    // Sweeps do not follow links.
    std::fs::write(folder.path().join("elsewhere/.tmp-ronde-x"), b"x").unwrap();
    assert_eq!(following.sweep().unwrap(), 0);
}

#[test]
fn listings_of_user_folders_report_entries_that_cannot_be_read() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    std::fs::create_dir(data.join(".hidden")).unwrap();
    for path in ["a", ".hidden/d", ".e"] {
        std::fs::write(data.join(path), path).unwrap();
    }
    let following = LocalStore::new(data).following_links();
    symlink("nowhere", data.join("broken")).unwrap();
    symlink("itself", data.join("itself")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        data.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let whole = following.list_files(None, &mut |_| true).unwrap();
    assert_eq!(whole.entries.len(), 1);
    let unusable: Vec<(&str, String)> = whole
        .unusable
        .iter()
        .map(|entry| {
            let told = match &entry.cause {
                UnusableCause::Hidden => "hidden".to_owned(),
                UnusableCause::File(error) | UnusableCause::Unknown(error) => error.to_string(),
            };
            (entry.name.as_str(), told)
        })
        .collect();
    let expected = [
        (".e", "hidden"),
        (".hidden/", "hidden"),
        ("broken", "the link leads to nowhere, which does not exist"),
        ("itself", "Too many levels of symbolic links"),
        ("pipe", "it is not a regular file but a FIFO"),
    ];
    assert_eq!(unusable.len(), expected.len(), "{unusable:?}");
    for ((name, told), (expected, words)) in unusable.iter().zip(expected) {
        assert!(*name == expected && told.contains(words), "{unusable:?}");
    }
    // A named link that leads nowhere is not a missing file.
    let error = following.open(&name("broken")).err().unwrap();
    assert!(!error.is_not_found(), "{error}");
}

#[test]
fn truncation_during_a_read_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, pattern(1, 5_000)).unwrap();
    let object = LocalStore::new(folder.path()).open(&name("x")).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    for (len, words) in [(51, "truncated while it was read"), (50, "written to it")] {
        let error = object.read_at(50, &mut vec![0; len]).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_file_that_is_written_to_in_place_is_reported_and_one_that_is_replaced_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let (old, new) = (pattern(1, 5_000), pattern(2, 5_000));
    std::fs::write(&path, &old).unwrap();
    let store = LocalStore::new(folder.path());
    let object = store.open(&name("x")).unwrap();
    // Renamed, replaced and deleted: the open file has its contents.
    std::fs::rename(&path, folder.path().join("y")).unwrap();
    std::fs::write(&path, &new).unwrap();
    std::fs::remove_file(folder.path().join("y")).unwrap();
    let mut read = vec![0; 5_000];
    object.read_at(0, &mut read).unwrap();
    assert_eq!(read, old);
    // The length stays the same.
    let object = store.open(&name("x")).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, &[1], 4_000).unwrap();
    // The time of a file system advances in ticks of some milliseconds.
    let changed = std::time::SystemTime::UNIX_EPOCH;
    file.set_modified(changed).unwrap();
    let error = object.read_at(50, &mut [0; 50]).unwrap_err().to_string();
    let path = path.display().to_string();
    assert!(
        error.contains(&path) && error.contains("a program has written to it"),
        "{error}"
    );
    store
        .open(&name("x"))
        .unwrap()
        .read_at(50, &mut [0; 50])
        .unwrap();
}

/// A mounted file system of `bytes`, unmounted when dropped; `None`, with the reason printed, where
/// mounting fails.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(bytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(folder)),
            Ok(output) => {
                ronde_testing::skip(&String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                ronde_testing::skip(&format!("cannot run mount: {error}"));
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_reported_and_keeps_existing_objects() {
    let Some(disk) = SmallDisk::new(1 << 20) else {
        return;
    };
    let store = LocalStore::new(disk.0.path());
    let old = pattern(1, 300_000);
    store.put(&name("x"), &old).unwrap();
    let error = store.put(&name("x"), &pattern(2, 2 << 20)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("/x") && text.contains("free some space"),
        "{text}"
    );
    assert_eq!(error.recovery(), Recovery::Abort);
    assert!(store.get(&name("x"), 1 << 20).unwrap() == old);
    assert_eq!(store.list(None).unwrap().len(), 1);
    // A failed write leaves no bytes behind: an object that fits beside the old one can still be
    // written.
    store.put(&name("y"), &pattern(3, 600_000)).unwrap();
}

#[test]
fn a_change_in_place_with_the_old_modification_time_changes_the_stamp() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    let path = folder.path().join("x");
    std::fs::write(&path, b"old").unwrap();
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    let before = store.open(&name("x")).unwrap().stamp();
    // The clock of the file system has ticks of some milliseconds.
    let tick = || std::fs::metadata(&path).unwrap().modified().unwrap() != time;
    while !tick() {
        std::fs::write(&path, b"new").unwrap();
    }
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_times(std::fs::FileTimes::new().set_modified(time))
        .unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), time);
    assert_ne!(store.open(&name("x")).unwrap().stamp(), before);
}
