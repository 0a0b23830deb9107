//! One cache shared by several processes, with some killed.
//!
//! A child is this program again, running only the test [`child`]; the variable `RONDE_TEST_CHILD` selects its task.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ronde_data::cache::{Cache, CacheSettings};
use ronde_data::source::{FolderNames, SourceFile, expand};
use ronde_store::{Opener, RemoteSettings};

use crate::cache::{PAGE, read_and_compare, settings};
use crate::services::{WebServer, pattern};

const FILES: usize = 3;
const FILE_BYTES: usize = 9 * PAGE + 777;
const VARIABLE: &str = "RONDE_TEST_CHILD";

fn contents(number: usize) -> Vec<u8> {
    pattern(number as u64, FILE_BYTES)
}

fn found(address: &str) -> Vec<SourceFile> {
    let patterns = [format!("{address}/{{0..{}}}.bin", FILES - 1)];
    let opener = Opener::new(RemoteSettings::default());
    let found = expand(&patterns, Path::new("."), &opener, FolderNames::All);
    found.unwrap().files
}

fn serve() -> (WebServer, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    for number in 0..FILES {
        std::fs::write(place.path().join(format!("{number}.bin")), contents(number)).unwrap();
    }
    (WebServer::start(place.path(), 0, &[]), place)
}

fn start(address: &str, folder: &Path, pages_max: usize, passes: usize, seed: usize) -> Child {
    let task = format!("{address} {} {pages_max} {passes} {seed}", folder.display());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--ignored", "--nocapture"])
        .env(VARIABLE, task)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the number of bytes that a child fetched, once it ended.
fn fetched(mut child: Child) -> u64 {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{told:?}");
    let line = told.iter().find_map(|line| line.split_once("fetched "));
    line.unwrap().1.parse().unwrap()
}

#[test]
#[ignore = "the child process of the other tests"]
fn child() {
    let task = std::env::var_os(VARIABLE).unwrap().into_string().unwrap();
    let [address, folder, pages_max, passes, seed] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}");
    };
    let number = |text: &str| text.parse::<usize>().unwrap();
    let settings = CacheSettings {
        bytes_max: (number(pages_max) * (PAGE + 1024)) as u64,
        ..settings()
    };
    let cache = Cache::open(folder, settings).unwrap();
    let files = found(address);
    for pass in 0..number(passes) {
        for step in 0..FILES {
            let file = (step + number(seed) + pass) % FILES;
            read_and_compare(&cache, &files[file], &contents(file));
        }
    }
    assert_eq!(cache.take_events(), []);
    println!("fetched {}", cache.counters().remote_bytes);
}

#[test]
fn four_processes_fetch_a_set_once() {
    let (server, _place) = serve();
    let folder = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|seed| start(&server.address(), folder.path(), 1000, 2, seed))
        .collect();
    let fetched: u64 = children.into_iter().map(fetched).sum();
    assert_eq!(fetched, (FILES * FILE_BYTES) as u64);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "children are killed at any moment, not at an event"
)]
fn killed_processes_leave_no_wrong_bytes() {
    let (server, _place) = serve();
    let folder = tempfile::tempdir().unwrap();
    // Room for a third of the set, so that pages are evicted and fetched all the time.
    let start = |seed| start(&server.address(), folder.path(), 10, 1000, seed);
    let mut children: Vec<Child> = (0..4).map(start).collect();
    for kill in 0..16 {
        // Children are killed while they start, and after they have read for a while.
        std::thread::sleep(std::time::Duration::from_millis(kill * 37 % 200));
        let at = (kill as usize * 7) % children.len();
        assert!(
            children[at].try_wait().unwrap().is_none(),
            "the child ended by itself"
        );
        children[at].kill().unwrap();
        children[at].wait().unwrap();
        children[at] = start(kill as usize);
    }
    for mut child in children {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the child ended by itself"
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The next processes read right, and no leftovers are in the way.
    let next = |pages_max| self::start(&server.address(), folder.path(), pages_max, 2, 0);
    fetched(next(10));
    fetched(next(1000));
    assert_eq!(fetched(next(1000)), 0);
    let unfinished = std::fs::read_dir(folder.path().join("v1/unfinished")).unwrap();
    assert_eq!(unfinished.count(), 0);
}
