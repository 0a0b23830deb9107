//! The layout of an image in a tar archive: blobs by their hashes, a configuration, a manifest and an index
//! (<https://github.com/opencontainers/image-spec>, version 1.1).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::{HOME, PROGRAM, USER};
use crate::error::SubmitError;

/// The kinds of blobs.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The annotation with the name of an image.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The size of the buffer for hashing.
const BUFFER_BYTES: usize = 1 << 16;

/// The digest of a blob: `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageDigest(String);

impl std::fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl ImageDigest {
    fn of(mut bytes: impl Read) -> std::io::Result<Self> {
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = bytes.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
        }
        let digits: String = hash
            .finish()
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self(format!("sha256:{digits}")))
    }

    /// Returns the path of the blob in the layout.
    fn path(&self) -> String {
        format!("blobs/{}", self.0.replace(':', "/"))
    }
}

/// Writes the archive, which replaces an earlier one once it is complete.
pub(super) fn write(layer: &File, name: &str, to: &Path) -> Result<ImageDigest, SubmitError> {
    let failed = SubmitError::file("write", to);
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let written = (|| -> std::io::Result<ImageDigest> {
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let digest = write_to(layer, name, file.as_file_mut())?;
        file.persist(to)?;
        Ok(digest)
    })();
    written.map_err(failed)
}

fn write_to(mut layer: &File, name: &str, to: &mut File) -> std::io::Result<ImageDigest> {
    layer.rewind()?;
    let layer_digest = ImageDigest::of(layer)?;
    let layer_size = layer.metadata()?.len();
    let config = encode(&configuration(&layer_digest));
    let manifest = encode(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &ImageDigest::of(&config[..])?, config.len() as u64),
        "layers": [descriptor(LAYER, &layer_digest, layer_size)],
    }));
    let digest = ImageDigest::of(&manifest[..])?;
    let mut described = descriptor(MANIFEST, &digest, manifest.len() as u64);
    if let Some(map) = described.as_object_mut() {
        // With the tag alone, podman would take it for the name.
        map.insert("annotations".to_owned(), json!({ NAME: name }));
        map.insert("platform".to_owned(), platform());
    }
    let index = encode(&json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [described],
    }));
    let mut archive = Builder::new(to);
    blob(
        &mut archive,
        "oci-layout",
        &encode(&json!({ "imageLayoutVersion": "1.0.0" })),
    )?;
    blob(&mut archive, "index.json", &index)?;
    blob(&mut archive, &ImageDigest::of(&config[..])?.path(), &config)?;
    blob(&mut archive, &digest.path(), &manifest)?;
    layer.rewind()?;
    let mut header = header(layer_size);
    archive.append_data(&mut header, layer_digest.path(), layer)?;
    archive.into_inner()?.flush()?;
    Ok(digest)
}

/// Returns the configuration of the image: the program, its user, and no time, so that equal files give equal bytes.
fn configuration(layer: &ImageDigest) -> Value {
    let mut config = json!({
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "User": format!("{USER}:{USER}"),
            "WorkingDir": format!("/{HOME}"),
            "Entrypoint": [format!("/{PROGRAM}")],
            "Env": ["PATH=/usr/local/bin", format!("HOME=/{HOME}")],
        },
        "rootfs": { "type": "layers", "diff_ids": [layer.to_string()] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "ronde image" }],
    });
    if let (Some(config), Value::Object(platform)) = (config.as_object_mut(), platform()) {
        config.extend(platform);
    }
    config
}

/// Returns the system and the processor of this machine, with their names in images.
fn platform() -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({ "os": std::env::consts::OS, "architecture": architecture })
}

fn descriptor(kind: &str, digest: &ImageDigest, size: u64) -> Value {
    json!({ "mediaType": kind, "digest": digest.to_string(), "size": size })
}

fn encode(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn blob(archive: &mut Builder<&mut File>, path: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut header = header(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes)
}

fn header(size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(size);
    header
}
