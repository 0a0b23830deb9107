//! The test suite on an S3 server and an Azure Blob server that run beside the tests (moto,
//! Azurite).
//!
//! `servers.py` starts them and writes the variables that name them; without these variables the
//! tests are skipped with a message.

use std::sync::Arc;
use std::time::Duration;

use ronde_core::Recovery;
use ronde_store::{
    Address, Encrypted, IoThread, MasterKey, RemoteSettings, RemoteStore, Store, StoreError, open,
};

use crate::conformance;

/// Azurite's public account and key.
const AZURITE: [(&str, &str); 2] = [
    ("azure_storage_account_name", "devstoreaccount1"),
    (
        "azure_storage_account_key",
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    ),
];

pub(crate) fn server(variable: &str) -> Option<String> {
    let address = std::env::var_os(variable).and_then(|value| value.into_string().ok());
    if address.is_none() {
        ronde_testing::skip(&format!("{variable} does not name a server"));
    }
    address
}

pub(crate) fn settings(options: &[(&str, &str)]) -> RemoteSettings {
    RemoteSettings {
        options: options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        retries: 2,
        limit: Duration::from_secs(30),
        ..RemoteSettings::default()
    }
}

/// Uses the key of the server's user, `NAME:SECRET`, or the given one.
pub(crate) fn s3(endpoint: &str) -> RemoteSettings {
    let key = std::env::var_os("RONDE_TEST_S3_KEY").and_then(|value| value.into_string().ok());
    let key = key.unwrap_or_else(|| "test:test".to_owned());
    let (name, secret) = key.split_once(':').unwrap();
    settings(&[
        ("aws_access_key_id", name),
        ("aws_secret_access_key", secret),
        ("aws_region", "us-east-1"),
        ("aws_endpoint", endpoint),
        ("allow_http", "true"),
    ])
}

pub(crate) fn azure(endpoint: &str) -> RemoteSettings {
    let endpoint = format!("{endpoint}/{}", AZURITE[0].1);
    settings(&[
        AZURITE[0],
        AZURITE[1],
        ("azure_storage_endpoint", &endpoint),
        ("allow_http", "true"),
    ])
}

/// Returns a prefix that no earlier run of the tests has used.
fn fresh(bucket: &str) -> Address {
    let unique = tempfile::tempdir().unwrap();
    let unique = unique.path().file_name().unwrap().to_string_lossy();
    format!("{bucket}/{}/runs", unique.trim_start_matches('.'))
        .parse()
        .unwrap()
}

fn keeps_the_promises(bucket: &str, settings: &RemoteSettings) {
    conformance::check(&open(&fresh(bucket), settings).unwrap());
    let below = open(&fresh(bucket), settings).unwrap();
    let key = MasterKey::generate().unwrap();
    conformance::check(&(Arc::new(Encrypted::new(below, key)) as Arc<dyn Store>));
}

#[test]
fn s3_keeps_the_promises() {
    if let Some(endpoint) = server("RONDE_TEST_S3") {
        keeps_the_promises("s3://ronde-test", &s3(&endpoint));
    }
}

#[test]
fn azure_keeps_the_promises() {
    if let Some(endpoint) = server("RONDE_TEST_AZURE") {
        keeps_the_promises("az://ronde-test", &azure(&endpoint));
    }
}

#[test]
fn wrong_settings_are_distinguished_from_an_unreachable_service() {
    let io = Arc::new(IoThread::start().unwrap());
    let connect = |address: &str, settings: &RemoteSettings| {
        RemoteStore::connect(&address.parse().unwrap(), settings, Arc::clone(&io)).unwrap_err()
    };
    let misspelt = settings(&[("aws_acess_key", "x")]);
    let error = connect("s3://bucket", &misspelt);
    assert!(error.to_string().contains("aws_acess_key"), "{error}");
    assert_eq!(error.recovery(), Recovery::Abort);
    // Variables of other programs are not an error.
    let mut foreign = s3("http://127.0.0.1:1");
    let others = [("aws_pager", "less"), ("azure_devops_cache_dir", "/tmp")];
    foreign.ambient = others
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    let error = connect("s3://bucket", &foreign);
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    // A port on which no process listens.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("http://{}", socket.local_addr().unwrap());
    drop(socket);
    let error = connect("s3://bucket", &s3(&away));
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(error.recovery(), Recovery::Retry);
    let error = connect("az://container", &settings(&[]));
    assert!(matches!(error, StoreError::Settings { .. }), "{error}");
    assert!(
        error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"),
        "{error}"
    );
}

#[test]
fn missing_buckets_and_wrong_keys_are_named() {
    if let Some(endpoint) = server("RONDE_TEST_S3") {
        let missing = "s3://not-made".parse().unwrap();
        let error = open(&missing, &s3(&endpoint)).unwrap_err();
        assert!(error.to_string().contains("no such bucket"), "{error}");
        for (option, told) in [
            (0, "the access key is unknown"),
            (1, "the secret key is wrong"),
        ] {
            let mut wrong = s3(&endpoint);
            wrong.options[option].1 = "somebody-elses".to_owned();
            let error = open(&"s3://ronde-test".parse().unwrap(), &wrong).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(error.recovery(), Recovery::Abort);
        }
    }
    if let Some(endpoint) = server("RONDE_TEST_AZURE") {
        let missing = "az://not-made".parse().unwrap();
        let error = open(&missing, &azure(&endpoint)).unwrap_err();
        assert!(error.to_string().contains("no such container"), "{error}");
        let mut wrong = azure(&endpoint);
        wrong.options[1].1 = "bm90IHRoZSBrZXk=".to_owned();
        let error = open(&"az://ronde-test".parse().unwrap(), &wrong).unwrap_err();
        assert!(matches!(error, StoreError::Settings { .. }), "{error}");
        assert!(error.to_string().contains("key is wrong"), "{error}");
    }
}

#[test]
fn an_untrusted_certificate_is_reported_without_retries() {
    if let Some(endpoint) = server("RONDE_TEST_UNTRUSTED") {
        for (address, settings) in [
            ("s3://ronde-test", s3(&endpoint)),
            ("az://ronde-test", azure(&endpoint)),
        ] {
            let error = open(&address.parse().unwrap(), &settings).unwrap_err();
            assert!(
                error.to_string().contains("certificate is not trusted"),
                "{error}"
            );
            assert_eq!(error.recovery(), Recovery::Abort);
        }
    }
}
