//! Reading from web servers that run beside the tests: ranges, certificates, replaced files,
//! servers that stop.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ronde_core::Recovery;
use ronde_store::{Address, Opener, RemoteSettings, Store, StoreError, StoreExt};

use crate::certificates::certificates;
use crate::{name, pattern};

/// A running server, stopped when dropped.
struct WebServer {
    child: Child,
    port: u16,
}

impl WebServer {
    /// Serves `folder`; port 0 means any free port.
    fn start(folder: &Path, port: u16, options: &[&str]) -> Self {
        let mut child = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web_server.py"))
            .arg(folder)
            .args(["--port", &port.to_string()])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line.trim().parse().unwrap();
        Self { child, port }
    }

    fn at(&self, scheme: &str) -> Address {
        format!("{scheme}://127.0.0.1:{}", self.port)
            .parse()
            .unwrap()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(address: &Address) -> std::sync::Arc<dyn Store> {
    Opener::new(RemoteSettings::default())
        .open(address)
        .unwrap()
}

#[test]
fn ranges_of_files_are_read_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let contents = pattern(3, 300_000);
    let file = name("Bilder von heute/ä & 100%#1.bin");
    std::fs::create_dir(folder.path().join("Bilder von heute")).unwrap();
    std::fs::write(folder.path().join(file.as_str()), &contents).unwrap();
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    for options in [&[][..], &["--tag"]] {
        let server = WebServer::start(folder.path(), 0, options);
        let store = open(&server.at("http"));
        let object = store.open(&file).unwrap();
        assert_eq!(object.bytes(), 300_000);
        for (start, bytes) in [(0, 1), (0, 300_000), (299_999, 1), (4_711, 100_000)] {
            let mut read = vec![0; bytes];
            object.read_at(start as u64, &mut read).unwrap();
            assert!(read == contents[start..start + bytes], "{start} {bytes}");
        }
        let error = object.read_at(299_999, &mut [0; 2]).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(store.get(&name("empty"), 1).unwrap(), b"");
        let error = store.open(&name("absent")).err().unwrap();
        assert!(error.is_not_found(), "{error}");
        for error in [
            store.put(&name("x"), b"1").unwrap_err(),
            store.delete(&file).unwrap_err(),
            store.list(None).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Settings { .. }), "{error}");
            assert_eq!(error.recovery(), Recovery::Abort);
        }
        // The metadata are known from the listing, so the only request is the read.
        let entry = ronde_store::ObjectEntry {
            name: file.clone(),
            bytes: 300_000,
            stamp: object.stamp(),
        };
        let again = store.open_listed(&entry).unwrap();
        assert_eq!(again.location(), object.location());
        assert!(
            again
                .location()
                .ends_with("/Bilder%20von%20heute/ä%20&%20100%25%231.bin")
        );
        std::fs::write(folder.path().join(file.as_str()), &contents[1..]).unwrap();
        for object in [&object, &again] {
            let error = object.read_at(0, &mut [0; 10]).unwrap_err();
            assert!(error.is_conflict(), "{error}");
        }
        assert_ne!(store.open(&file).unwrap().stamp(), entry.stamp);
        std::fs::write(folder.path().join(file.as_str()), &contents).unwrap();
    }
}

#[test]
fn a_server_without_range_requests_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x"), pattern(1, 1000)).unwrap();
    let server = WebServer::start(folder.path(), 0, &["--without-ranges"]);
    let object = open(&server.at("http")).open(&name("x")).unwrap();
    let error = object.read_at(10, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, StoreError::Settings { .. }), "{error}");
    assert!(error.to_string().contains("whole files only"), "{error}");
}

#[test]
fn a_given_authority_is_trusted() {
    let (authority, certificate) = certificates();
    let folder = tempfile::tempdir().unwrap();
    let contents = pattern(5, 100_000);
    std::fs::write(folder.path().join("x"), &contents).unwrap();
    let keys = tempfile::tempdir().unwrap();
    let path = keys.path().join("certificate.pem");
    std::fs::write(&path, certificate).unwrap();
    let options = ["--certificate", path.to_str().unwrap()];
    let server = WebServer::start(folder.path(), 0, &options);
    let address = server.at("https");
    let error = open(&address).open(&name("x")).err().unwrap();
    assert!(matches!(error, StoreError::Settings { .. }), "{error}");
    assert!(error.to_string().contains("certificate is not trusted"));
    let with = |authorities: &str| {
        let path = keys.path().join("authorities.pem");
        std::fs::write(&path, authorities).unwrap();
        let settings = RemoteSettings {
            authorities: Some(path),
            ..RemoteSettings::default()
        };
        Opener::new(settings).open(&address)
    };
    assert!(with(&authority).unwrap().get(&name("x"), 1 << 20).unwrap() == contents);
    // Another authority's certificate is not trusted for this server, and a file without
    // certificates is reported at once.
    let error = with(&certificates().0).unwrap().open(&name("x")).err();
    assert!(matches!(error, Some(StoreError::Settings { .. })));
    let error = with("no certificate").err().unwrap();
    assert!(
        error.to_string().contains("no certificate (PEM)"),
        "{error}"
    );
}

#[test]
fn unknown_hosts_are_reported_at_once_and_absent_servers_soon() {
    let open = |address: &str| {
        let opener = Opener::new(RemoteSettings::default());
        let store = opener.open(&address.parse().unwrap()).unwrap();
        store.open(&name("x")).err().unwrap()
    };
    let error = open("https://no-such-host.invalid/folder");
    // Where no name can be resolved at all, that error is reported.
    let passing = error.to_string().contains("Temporary failure");
    assert!(
        passing || matches!(error, StoreError::Settings { .. }),
        "{error}"
    );
    assert!(
        passing || error.to_string().contains("no such host"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let gone = WebServer::start(folder.path(), 0, &[])
        .at("http")
        .to_string();
    let error = open(&gone);
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    // The service never answered, so requests were not repeated.
    assert!(!error.to_string().contains("tried"), "{error}");
}

#[test]
fn reading_survives_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let contents = pattern(7, 1 << 20);
    std::fs::write(folder.path().join("x"), &contents).unwrap();
    for options in [&[][..], &["--tag"]] {
        let first = WebServer::start(folder.path(), 0, options);
        let (address, port) = (first.at("http"), first.port);
        let store = open(&address);
        let object = store.open(&name("x")).unwrap();
        let mut half = vec![0; 1 << 19];
        object.read_at(0, &mut half).unwrap();
        assert!(half == contents[..1 << 19]);
        drop(first);
        let second = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rest = vec![0; 1 << 19];
                object.read_at(1 << 19, &mut rest).map(|()| rest)
            });
            let second = WebServer::start(folder.path(), port, options);
            assert!(reader.join().unwrap().unwrap() == contents[1 << 19..]);
            second
        });
        drop(second);
        // The retry limit ends the read.
        let settings = RemoteSettings {
            retry_limit: std::time::Duration::from_secs(2),
            ..RemoteSettings::default()
        };
        let third = WebServer::start(folder.path(), port, options);
        let store = Opener::new(settings).open(&address).unwrap();
        let object = store.open(&name("x")).unwrap();
        drop(third);
        let error = object.read_at(0, &mut [0; 10]).unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("; tried "), "{error}");
    }
}
