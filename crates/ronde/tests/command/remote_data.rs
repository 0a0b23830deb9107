//! Samples on a web server that goes away, and comes back or not.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Ended, Place, RONDE, Running};

/// 48 MiB in all, of which little is read ahead.
const FILES: usize = 4;
const ROWS: usize = 12_288;
const COLUMNS: usize = 1024;

/// Of the pages that are kept encrypted.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A server of a folder; killed when it is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// At a port, 0 for any that is free.
    fn start(folder: &Path, port: u16) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/web_server.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg(folder)
            .args(["--tag", "--port", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rows of bytes that are to be learnt by heart, of a format that is not looked through before it is trained on.
fn place() -> Place {
    let place = Place::new();
    let folder = place.path().join("rows");
    std::fs::create_dir(&folder).unwrap();
    for part in 0..FILES {
        let header =
            format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({ROWS}, {COLUMNS}), }}");
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend_from_slice(&118_u16.to_le_bytes());
        file.extend_from_slice(format!("{header:<117}\n").as_bytes());
        let mut state = part as u32;
        file.extend((0..ROWS * COLUMNS).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }));
        std::fs::write(folder.join(format!("{part}.npy")), file).unwrap();
    }
    place.write(
        "run.toml",
        "version = 1\n[data]\nsource = \"records\"\ntrain = \"rows/*.npy\"\ncache_folder = \"pages\"\n\
         shuffle_block_kib = 64\nshuffle_window_mib = 1\n\
         features = { decode = \"numbers\", field = \"array\", shape = [1024], scale = 255 }\n\
         label = { field = \"array\", values = 1024, scale = 255 }\n\
         [loader]\nmemory_mib = 3\n\
         [model]\nkind = \"mlp\"\nhidden = [32]\n[train]\nepochs = 1\nglobal_batch_size = 64\n\
         learning_rate = 0.01\n",
    );
    place
}

fn start(place: &Place, server: &Server, more: &[&str]) -> Running {
    let files = format!(
        "data.train=http://127.0.0.1:{}/{{0..{}}}.npy",
        server.port,
        FILES - 1
    );
    let mut arguments = vec!["train", "run.toml", "--json", "-n", "2", "--set", &files];
    arguments.extend(more.iter().flat_map(|set| ["--set", set]));
    let key = ("RONDE_TEST_DATA_KEY", KEY);
    place.start(RONDE, &arguments, &[key])
}

/// Bytes that came from the server, as the workers count them.
fn remote_bytes(ended: &Ended) -> u64 {
    let read = ended.data_read();
    let bytes = read.iter().map(|event| event["remote_bytes"].as_u64());
    bytes.map(Option::unwrap).sum()
}

#[test]
fn a_run_waits_for_a_server_that_comes_back_and_goes_on() {
    let place = place();
    let local = place.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    let server = Server::start(&place.path().join("rows"), 0);
    let mut running = start(&place, &server, &[]);
    running.after_steps(2);
    let port = server.port;
    drop(server);
    running.says("it is asked again, for 60 s in all", 1);
    let _server = Server::start(&place.path().join("rows"), port);
    let ended = running.wait().expect(0, &[]);
    assert!(ended.stdout.contains("answers again"));
    assert_eq!(ended.blake3(), local.blake3());
    assert!(remote_bytes(&ended) > 0);
}

#[test]
fn a_run_that_downloads_first_needs_no_server_any_more_and_its_pages_can_be_encrypted() {
    let place = place();
    let local = place.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    let server = Server::start(&place.path().join("rows"), 0);
    let sets = [
        "data.cache=download-first",
        "data.cache_encrypt=variable:RONDE_TEST_DATA_KEY",
    ];
    let mut running = start(&place, &server, &sets);
    running.after_steps(2);
    drop(server);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), local.blake3());
    let plain = std::fs::read(place.path().join("rows/0.npy")).unwrap();
    let row = &plain[128 + COLUMNS..][..64];
    let (mut folders, mut bytes) = (vec![place.path().join("pages")], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let page = std::fs::read(&path).unwrap();
            bytes += page.len();
            assert!(!page.windows(row.len()).any(|part| part == row), "{path:?}");
        }
    }
    assert!(bytes >= FILES * ROWS * COLUMNS, "{bytes} bytes are kept");
}

#[test]
fn a_server_that_does_not_come_back_ends_the_run_and_is_named() {
    let place = place();
    let server = Server::start(&place.path().join("rows"), 0);
    let mut running = start(&place, &server, &["data.retry_s=1"]);
    running.after_steps(2);
    drop(server);
    let ended = running.wait();
    assert_ne!(ended.code, 0);
    assert!(
        ended.stderr.contains("asked") && ended.stderr.contains("http://127.0.0.1:"),
        "{ended:#?}"
    );
}
