//! Samples on a web server that stops, with and without a restart.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Ended, RONDE, Running, TestFolder};

/// 48 MiB in total, with little read-ahead.
const FILES: usize = 4;
const ROWS: usize = 12_288;
const COLUMNS: usize = 1024;

/// Encryption key of the cached pages.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A web server of a folder, killed when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts at a port, or at any free port with 0.
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
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
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

/// Writes rows of random bytes for a model to memorize.
fn dataset() -> TestFolder {
    let dir = TestFolder::new();
    let folder = dir.path().join("rows");
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
    dir.write(
        "run.toml",
        "version = 1\n[data]\nsource = \"records\"\ntrain = \"rows/*.npy\"\ncache_folder = \"pages\"\n\
         shuffle_block_kib = 64\nshuffle_window_mib = 1\n\
         features = { decode = \"numbers\", field = \"array\", shape = [1024], scale = 255 }\n\
         label = { field = \"array\", values = 1024, scale = 255 }\n\
         [loader]\nmemory_mib = 3\n\
         [model]\nkind = \"mlp\"\nhidden = [32]\n[train]\nepochs = 1\nglobal_batch_size = 64\n\
         learning_rate = 0.01\n",
    );
    dir
}

fn start(dir: &TestFolder, server: &Server, more: &[&str]) -> Running {
    let files = format!(
        "data.train=http://127.0.0.1:{}/{{0..{}}}.npy",
        server.port,
        FILES - 1
    );
    let mut arguments = vec!["train", "run.toml", "--json", "--overwrite", "-n", "2"];
    arguments.extend(["--set", &files]);
    arguments.extend(more.iter().flat_map(|set| ["--set", set]));
    let key = ("RONDE_TEST_DATA_KEY", KEY);
    dir.start(RONDE, &arguments, &[key])
}

/// Returns the bytes read from the server, as reported by the workers.
fn remote_bytes(ended: &Ended) -> u64 {
    let read = ended.data_read();
    let bytes = read.iter().map(|event| event["remote_bytes"].as_u64());
    bytes.map(Option::unwrap).sum()
}

/// Indexing reads each file once for its content hash. The cache holds 12 of the 48 MiB, so training reads from the server
/// again.
const SMALL_CACHE: &str = "data.cache_limit_gib=0.012";

#[test]
fn a_run_waits_for_a_server_to_restart_and_continues() {
    let dir = dataset();
    let local = dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    let server = Server::start(&dir.path().join("rows"), 0);
    let mut running = start(&dir, &server, &[SMALL_CACHE]);
    running.after_steps(2);
    let port = server.port;
    drop(server);
    running.wait_stdout("retrying for up to 60 s", 1);
    let _server = Server::start(&dir.path().join("rows"), port);
    let ended = running.wait().expect(0, &[]);
    assert!(ended.stdout.contains("responds again"));
    assert_eq!(ended.blake3(), local.blake3());
    assert!(remote_bytes(&ended) > 0);
}

#[test]
fn a_run_that_downloads_first_does_not_need_the_server_later_and_its_pages_can_be_encrypted() {
    let dir = dataset();
    let local = dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
    let server = Server::start(&dir.path().join("rows"), 0);
    let sets = [
        "data.cache=download-first",
        "data.cache_encrypt=variable:RONDE_TEST_DATA_KEY",
    ];
    let mut running = start(&dir, &server, &sets);
    running.after_steps(2);
    drop(server);
    let ended = running.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), local.blake3());
    let plain = std::fs::read(dir.path().join("rows/0.npy")).unwrap();
    let row = &plain[128 + COLUMNS..][..64];
    let (mut folders, mut bytes) = (vec![dir.path().join("pages")], 0);
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
fn a_server_that_stays_away_ends_the_run_and_is_named() {
    let dir = dataset();
    let server = Server::start(&dir.path().join("rows"), 0);
    let mut running = start(&dir, &server, &[SMALL_CACHE, "data.retry_s=1"]);
    running.after_steps(2);
    drop(server);
    let ended = running.wait();
    assert_ne!(ended.code, 0);
    assert!(
        ended.stderr.contains("tried") && ended.stderr.contains("http://127.0.0.1:"),
        "{ended:#?}"
    );
}

#[test]
fn a_signal_ends_the_command_while_a_server_does_not_answer() {
    let dir = dataset();
    // It accepts connections and never sends anything.
    let server = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let files = format!("data.train=http://127.0.0.1:{port}/0.npy");
    let arguments = ["train", "run.toml", "--set", &files];
    let running = dir.start(RONDE, &arguments, &[]);
    let connection = server.accept().unwrap();
    running.signal(rustix::process::Signal::INT);
    running
        .wait()
        .expect(130, &["interrupted before anything was started"]);
    drop(connection);
}
