//! The services that files are read from.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ronde_store::{ObjectName, Opener, RemoteSettings, StoreExt, open};

/// Returns bytes that differ between offsets and between values of `seed`.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| ((at ^ (seed << 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// A running web server; dropping it stops the server.
pub(crate) struct WebServer {
    child: Child,
    pub(crate) port: u16,
}

impl WebServer {
    /// Serves `folder`; port 0 selects any free one.
    pub(crate) fn start(folder: &Path, port: u16, options: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/web_server.py");
        let mut child = Command::new("python3")
            .arg(script)
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

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files that were uploaded.
pub(crate) struct Service {
    /// Address of their folder.
    pub(crate) folder: String,
    pub(crate) settings: RemoteSettings,
    pub(crate) has_listings: bool,
    server: Option<(WebServer, tempfile::TempDir)>,
}

impl Service {
    pub(crate) fn opener(&self) -> Opener {
        Opener::new(self.settings.clone())
    }
}

/// Returns the value of a variable that `servers.py` writes.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).and_then(|value| value.into_string().ok());
    if value.is_none() {
        ronde_testing::skip(&format!("{name} does not name a server"));
    }
    value
}

fn settings(options: &[(&str, &str)]) -> RemoteSettings {
    RemoteSettings {
        options: options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..RemoteSettings::default()
    }
}

/// Returns settings for S3 without a bucket.
pub(crate) fn s3() -> Option<RemoteSettings> {
    let endpoint = variable("RONDE_TEST_S3")?;
    let key = variable("RONDE_TEST_S3_KEY")?;
    let (name, secret) = key.split_once(':')?;
    Some(settings(&[
        ("aws_access_key_id", name),
        ("aws_secret_access_key", secret),
        ("aws_region", "us-east-1"),
        ("aws_endpoint", &endpoint),
        ("allow_http", "true"),
    ]))
}

/// Returns settings for Azure Blob without a container.
pub(crate) fn azure() -> Option<RemoteSettings> {
    let endpoint = variable("RONDE_TEST_AZURE")?;
    Some(azure_at(&endpoint))
}

/// Returns settings for Azurite at an address. Its account and key are public.
pub(crate) fn azure_at(endpoint: &str) -> RemoteSettings {
    settings(&[
        ("azure_storage_account_name", "devstoreaccount1"),
        (
            "azure_storage_account_key",
            "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
        ),
        (
            "azure_storage_endpoint",
            &format!("{endpoint}/devstoreaccount1"),
        ),
        ("allow_http", "true"),
    ])
}

/// Uploads files to every available service.
pub(crate) fn everywhere(files: &[(&str, Vec<u8>)]) -> Vec<Service> {
    let unique = tempfile::tempdir().unwrap();
    let unique = unique.path().file_name().unwrap().to_string_lossy();
    let unique = unique.trim_start_matches('.').to_owned();
    let mut services = Vec::new();
    for (bucket, settings) in [("s3://ronde-test", s3()), ("az://ronde-test", azure())] {
        let Some(settings) = settings else { continue };
        let folder = format!("{bucket}/{unique}");
        let store = open(&folder.parse().unwrap(), &settings).unwrap();
        for (name, bytes) in files {
            store.put(&ObjectName::new(*name).unwrap(), bytes).unwrap();
        }
        services.push(Service {
            folder,
            settings,
            has_listings: true,
            server: None,
        });
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join("files").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let server = WebServer::start(folder.path(), 0, &[]);
    services.push(Service {
        folder: format!("{}/files", server.address()),
        settings: RemoteSettings::default(),
        has_listings: false,
        server: Some((server, folder)),
    });
    services
}

impl Drop for Service {
    fn drop(&mut self) {
        // Stop the server first, then remove its files.
        drop(self.server.take());
    }
}
