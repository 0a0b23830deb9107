//! Construction of the clients of the `object_store` crate from addresses and settings.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{Certificate, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};

use super::failure::FailedOperation;
use super::upload_client::{StoreConnector, UploadConnector};
use crate::address::Address;
use crate::error::StoreError;
use crate::settings::RemoteSettings;

/// The size limit of a file of certificate authorities; that of a system has about 200 KiB.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;

/// The time limits and repetitions of a client's requests.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// The number of times a failed request is repeated.
    pub(super) retries: usize,
    /// The time after the start of a request within which it is repeated.
    pub(super) retry_within: Duration,
    /// The time without a received byte after which a request is cancelled.
    pub(super) silence: Duration,
    /// The counter of sent bytes, for a client that writes: sending counts like receiving.
    pub(super) written: Option<Arc<AtomicU64>>,
}

/// The kind of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// S3 and Azure Blob: the version of an object is its ETag.
    Blobs,
    /// Google Cloud Storage: the version of an object is its generation.
    Google,
    /// A web server: cannot be listed or written.
    Web,
}

pub(super) fn build(
    address: &Address,
    settings: &RemoteSettings,
    limits: Limits,
) -> Result<(Arc<dyn ObjectStore>, Service), StoreError> {
    let failure = FailedOperation {
        operation: "open",
        location: address.to_string(),
    };
    let retry = RetryConfig {
        max_retries: limits.retries,
        retry_timeout: limits.retry_within,
        ..RetryConfig::default()
    };
    let (client, connector) = client(settings, limits, &failure)?;
    let failed = |error| failure.of(error);
    match address {
        Address::S3 { bucket, .. } => {
            let keys = keys::<AmazonS3ConfigKey>(settings, &failure)?;
            let builder = AmazonS3Builder::new()
                .with_client_options(client)
                .with_http_connector(connector);
            let built = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .with_bucket_name(bucket)
                .with_retry(retry)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .build();
            Ok((Arc::new(built.map_err(failed)?), Service::Blobs))
        }
        Address::Azure { container, .. } => {
            let keys = keys::<AzureConfigKey>(settings, &failure)?;
            let builder = MicrosoftAzureBuilder::new()
                .with_client_options(client)
                .with_http_connector(connector);
            let built = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .with_container_name(container)
                .with_retry(retry)
                .build();
            Ok((Arc::new(built.map_err(failed)?), Service::Blobs))
        }
        Address::Google { bucket, .. } => {
            let keys = keys::<GoogleConfigKey>(settings, &failure)?;
            let builder = GoogleCloudStorageBuilder::new()
                .with_client_options(client)
                .with_http_connector(connector);
            let built = keys
                .into_iter()
                .fold(builder, |builder, (key, value)| {
                    builder.with_config(key, value)
                })
                .with_bucket_name(bucket)
                .with_retry(retry)
                .build();
            Ok((Arc::new(built.map_err(failed)?), Service::Google))
        }
        Address::Web { server, .. } => web(server, settings, client, retry, &failure),
        Address::Folder(_) => Err(failure.settings("a folder is not a remote store".to_owned())),
    }
}

fn web(
    server: &str,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
    failure: &FailedOperation,
) -> Result<(Arc<dyn ObjectStore>, Service), StoreError> {
    // An address that starts with http:// permits plain http.
    let client = client.with_allow_http(server.starts_with("http://"));
    let client = keys::<ClientConfigKey>(settings, failure)?
        .into_iter()
        .fold(client, |client, (key, value)| {
            client.with_config(key, value)
        });
    let builder = HttpBuilder::new().with_client_options(client);
    let built = builder.with_url(server).with_retry(retry).build();
    let built = built.map_err(|error| failure.of(error))?;
    Ok((Arc::new(built), Service::Web))
}

/// Returns the settings that the service knows; those of the environment are first, so that the
/// options override them.
fn keys<K: FromStr>(
    settings: &RemoteSettings,
    failure: &FailedOperation,
) -> Result<Vec<(K, String)>, StoreError> {
    let mut keys = Vec::new();
    for (name, value) in &settings.ambient {
        if let Ok(key) = name.parse() {
            keys.push((key, value.clone()));
        }
    }
    for (name, value) in &settings.options {
        let key = name
            .parse()
            .map_err(|_| failure.settings(format!("unknown option `{name}` of this service")))?;
        keys.push((key, value.clone()));
    }
    Ok(keys)
}

/// Returns the options of a client, and the connector that makes it. The limit of whole requests is enforced by the I/O
/// thread: a large range takes long over a slow link, but the link is never silent for long.
fn client(
    settings: &RemoteSettings,
    limits: Limits,
    failure: &FailedOperation,
) -> Result<(ClientOptions, StoreConnector), StoreError> {
    let mut client = ClientOptions::new().with_timeout_disabled();
    let authorities = authorities(settings, failure)?;
    let pem = authorities.as_deref().unwrap_or_default();
    for authority in Certificate::from_pem_bundle(pem).unwrap_or_default() {
        client = client.with_root_certificate(authority);
    }
    Ok(match limits.written {
        Some(progress) => {
            let uploads = UploadConnector {
                silence: limits.silence,
                progress,
                authorities,
            };
            (client, StoreConnector::Writing(uploads))
        }
        None => (
            client.with_read_timeout(limits.silence),
            StoreConnector::Reading,
        ),
    })
}

/// Reads the file of certificate authorities (PEM), if there is one.
fn authorities(
    settings: &RemoteSettings,
    failure: &FailedOperation,
) -> Result<Option<Arc<[u8]>>, StoreError> {
    let Some(path) = &settings.authorities else {
        return Ok(None);
    };
    let unusable = |problem: String| {
        let path = path.display();
        failure.settings(format!(
            "cannot read certificate authorities from {path}: {problem}"
        ))
    };
    let pem = crate::read_regular(path, AUTHORITIES_BYTES_MAX)
        .map_err(|error| unusable(error.to_string()))?;
    let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
    if found.is_empty() {
        return Err(unusable(
            "the file contains no certificate (PEM)".to_owned(),
        ));
    }
    Ok(Some(pem.into()))
}
