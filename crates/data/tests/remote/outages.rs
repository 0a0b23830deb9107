//! Services that disappear while a set is read, and return.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_data::cache::Cache;
use ronde_data::source::{FolderNames, expand};
use ronde_store::{ObjectName, Opener, RemoteSettings, StoreExt, open};

use crate::cache::{PAGE, read_and_compare};
use crate::services::{azure_at, pattern, s3, variable};

const FILES: usize = 4;

fn contents(number: usize) -> Vec<u8> {
    pattern(number as u64, 9 * PAGE + 777 * number)
}

fn put(folder: &str, settings: &RemoteSettings) {
    let store = open(&folder.parse().unwrap(), settings).unwrap();
    for number in 0..FILES {
        let name = ObjectName::new(format!("{number}.bin")).unwrap();
        store.put(&name, &contents(number)).unwrap();
    }
}

/// Reads a set; when its first file is read, the service ends, and returns while the rest is being read.
fn read_through_an_outage<S>(
    folder: &str,
    settings: &RemoteSettings,
    end: impl FnOnce(),
    back: impl FnOnce() -> S,
) {
    let place = tempfile::tempdir().unwrap();
    let cache = Cache::open(place.path(), crate::cache::settings()).unwrap();
    let opener = Opener::new(settings.clone());
    let patterns = [format!("{folder}/*.bin")];
    let found = expand(&patterns, Path::new("."), &opener, FolderNames::All);
    let found = found.unwrap().files;
    assert_eq!(found.len(), FILES);
    read_and_compare(&cache, &found[0], &contents(0));
    end();
    let _service = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for (number, file) in found.iter().enumerate() {
                read_and_compare(&cache, file, &contents(number));
            }
        });
        let service = back();
        reader.join().unwrap();
        service
    });
    let bytes: u64 = found.iter().map(|file| file.bytes()).sum();
    assert!(cache.counters().remote_bytes >= bytes);
    assert_eq!(cache.take_events(), []);
}

/// Azurite with a folder, so that it finds its blobs after a restart.
struct Azurite(Child);

impl Azurite {
    #[expect(
        clippy::disallowed_methods,
        reason = "a starting server does not signal when it listens"
    )]
    fn start(program: &str, folder: &Path, address: SocketAddr) -> Self {
        let port = address.port().to_string();
        let mut child = Command::new(program)
            .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port, "--location"])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for _ in 0..3000 {
            if TcpStream::connect(address).is_ok() {
                return Self(child);
            }
            assert!(child.try_wait().unwrap().is_none(), "Azurite ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("Azurite does not listen");
    }

    /// Azurite saves its state when it is terminated.
    fn end(mut self) {
        let killed = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(killed.unwrap().success());
        self.0.wait().unwrap();
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

#[test]
fn a_set_in_azure_is_read_when_the_service_restarts() {
    let Some(program) = variable("RONDE_TEST_AZURITE") else {
        return;
    };
    let (blobs, address) = (tempfile::tempdir().unwrap(), free_address());
    let first = Azurite::start(&program, blobs.path(), address);
    let endpoint = format!("http://{address}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/servers.py");
    let made = Command::new("python3")
        .args([script, "--container", &endpoint])
        .status();
    assert!(made.unwrap().success());
    let settings = azure_at(&endpoint);
    put("az://ronde-test/set", &settings);
    read_through_an_outage(
        "az://ronde-test/set",
        &settings,
        || first.end(),
        || Azurite::start(&program, blobs.path(), address),
    );
}

/// A proxy that forwards connections until it is dropped, which closes them all.
struct Forwarder {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    accepting: Option<JoinHandle<()>>,
}

impl Forwarder {
    fn start(address: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (is_over, streams) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (over, all) = (Arc::clone(&is_over), Arc::clone(&streams));
        let accepting = std::thread::spawn(move || {
            for near in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (near, far) = (near.unwrap(), TcpStream::connect(to).unwrap());
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    std::thread::spawn(move || pass_on(from, into));
                }
                all.lock().unwrap().extend([near, far]);
            }
        });
        Self {
            address,
            is_over,
            streams,
            accepting: Some(accepting),
        }
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream) {
    let mut bytes = vec![0; 1 << 14];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if into.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Write);
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // So that it notices the end and releases its port.
        let _ = TcpStream::connect(self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

#[test]
fn a_set_in_s3_is_read_on_when_all_connections_are_cut_for_a_while() {
    let (Some(endpoint), Some(mut settings)) = (variable("RONDE_TEST_S3"), s3()) else {
        return;
    };
    let to = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
    let address = free_address();
    for (name, value) in &mut settings.options {
        if name == "aws_endpoint" {
            *value = format!("http://{address}");
        }
    }
    let first = Forwarder::start(address, to);
    put("s3://ronde-test/outage", &settings);
    read_through_an_outage(
        "s3://ronde-test/outage",
        &settings,
        || drop(first),
        || {
            // One attempt fails first.
            assert!(TcpStream::connect(address).is_err());
            Forwarder::start(address, to)
        },
    );
}
