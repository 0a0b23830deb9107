//! S3 and Azure Blob servers whose certificates are signed by a test authority.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ronde_core::Recovery;
use ronde_store::{RemoteSettings, StoreError, open};

use crate::remote::{azure, s3, server};

/// Returns an authority, and a certificate for 127.0.0.1 that it has signed: both PEM, the latter
/// with its key.
pub(crate) fn certificates() -> (String, String) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "an authority of our own");
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(params, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (
        authority.pem(),
        format!("{}{}", key.serialize_pem(), certificate.pem()),
    )
}

/// A server that was started for one test, and its address.
struct Running(Child, String);

impl Running {
    /// Starts a program with a free port as argument, and waits until it listens there.
    #[expect(
        clippy::disallowed_methods,
        reason = "a starting server does not report when it listens"
    )]
    fn start(program: &str, arguments: &dyn Fn(&str) -> Vec<String>) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = Command::new(program)
            .args(arguments(&address.port().to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut running = Self(child, format!("https://{address}"));
        for _ in 0..3000 {
            if TcpStream::connect(address).is_ok() {
                return running;
            }
            assert!(running.0.try_wait().unwrap().is_none(), "{program} ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{program} does not listen");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service reports a missing bucket, which shows that the certificate was accepted.
fn is_trusted_only_with(authority: &Path, address: &str, settings: &RemoteSettings) {
    let address = address.parse().unwrap();
    let error = open(&address, settings).unwrap_err();
    assert!(
        error.to_string().contains("certificate is not trusted"),
        "{error}"
    );
    assert_eq!(error.recovery(), Recovery::Abort);
    let with = RemoteSettings {
        authorities: Some(authority.to_owned()),
        ..settings.clone()
    };
    let error = open(&address, &with).unwrap_err();
    assert!(matches!(error, StoreError::Settings { .. }), "{error}");
    assert!(error.to_string().contains("create it first"), "{error}");
    let absent = RemoteSettings {
        authorities: Some("/no/such/file".into()),
        ..settings.clone()
    };
    let error = open(&address, &absent).unwrap_err().to_string();
    assert!(error.contains("/no/such/file"), "{error}");
}

#[test]
fn a_given_authority_is_trusted_for_s3_and_azure() {
    let (Some(moto), Some(azurite)) = (server("RONDE_TEST_MOTO"), server("RONDE_TEST_AZURITE"))
    else {
        return;
    };
    let (authority, certificate) = certificates();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let authority = path("authority.pem", &authority);
    let (key, chain) = certificate.split_once("-----BEGIN CERTIFICATE").unwrap();
    let key = path("key.pem", key);
    let chain = path("chain.pem", &format!("-----BEGIN CERTIFICATE{chain}"));
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let moto = Running::start(&moto, &|port| {
        words(format!(
            "-m moto.server -H 127.0.0.1 -p {port} -s -c {chain} -k {key}"
        ))
    });
    is_trusted_only_with(authority.as_ref(), "s3://not-made", &s3(&moto.1));
    let azurite = Running::start(&azurite, &|port| {
        words(format!(
            "--silent --skipApiVersionCheck --disableTelemetry --inMemoryPersistence --blobHost 127.0.0.1 --blobPort \
             {port} --cert {chain} --key {key}"
        ))
    });
    is_trusted_only_with(authority.as_ref(), "az://not-made", &azure(&azurite.1));
}

#[test]
fn unknown_hosts_are_reported_at_once() {
    let nowhere = "https://no-such-host.invalid";
    for (address, settings) in [
        ("s3://bucket", s3(nowhere)),
        ("az://container", azure(nowhere)),
    ] {
        let error = open(&address.parse().unwrap(), &settings).unwrap_err();
        // Where no name can be resolved at all, that error is reported.
        if !error.to_string().contains("Temporary failure") {
            assert!(matches!(error, StoreError::Settings { .. }), "{error}");
            assert!(error.to_string().contains("no such host"), "{error}");
        }
        assert!(!error.to_string().contains("tried"), "{error}");
    }
}
