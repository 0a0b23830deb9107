//! [`RayPackage`]: the program and the folder of the run file as an archive that the nodes of a cluster unpack.
//!
//! The archive is three headers around the output of `flate2`; the crate `zip` brings formats that nothing here needs.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::RaySettings;
use crate::error::SubmitError;
use crate::input_folder::InputFolder;
use crate::target::SubmitRequest;

/// The largest size of the data beside the run file: a dashboard takes 100 MiB with the program.
const INPUT_BYTES_MAX: u64 = 48 << 20;
/// The folder of the run file in the package.
pub(super) const INPUTS: &str = "inputs";

/// The files of a package.
pub(super) struct RayPackage {
    name: String,
    files: Vec<PackagedFile>,
    run_file: Option<String>,
    /// The folder of the run file, whose files must not change before the archive is made.
    inputs: Option<InputFolder>,
}

/// A file and its path in the package.
struct PackagedFile {
    path: PathBuf,
    name: String,
    /// The permissions, as Unix has them.
    mode: u32,
}

impl RayPackage {
    /// Finds the files of a run. The name of a package is a hash of its contents, so each is sent once. Costs one read of
    /// the files.
    pub(super) fn describe(
        settings: &RaySettings,
        request: &SubmitRequest,
    ) -> Result<Self, SubmitError> {
        let mut hasher = blake3::Hasher::new();
        let mut files = Vec::new();
        if settings.program.is_none() {
            let path = request.program.path.clone();
            let opened = std::fs::File::open(&path);
            opened
                .and_then(|file| hasher.update_reader(file).map(|_| ()))
                .map_err(SubmitError::file("read", &path))?;
            files.push(PackagedFile {
                path,
                name: "ronde".to_owned(),
                mode: 0o755,
            });
        }
        let (mut run_file, mut input_folder) = (None, None);
        if let Some(inputs) = InputFolder::of(request)? {
            if inputs.bytes > INPUT_BYTES_MAX {
                return Err(SubmitError::invalid(
                    format!(
                        "cannot send {} to the cluster: its {} files have {} bytes, and a package has room for \
                         {INPUT_BYTES_MAX}",
                        inputs.base.display(),
                        inputs.files.len(),
                        inputs.bytes
                    ),
                    "name the data by addresses such as s3://bucket/data, or by absolute paths on the nodes",
                ));
            }
            hasher.update(inputs.hash.as_bytes());
            run_file = Some(inputs.run_file.display().to_string());
            files.extend(inputs.files.iter().map(|file| PackagedFile {
                path: inputs.base.join(file),
                name: format!("{INPUTS}/{}", file.display()),
                mode: 0o644,
            }));
            input_folder = Some(inputs);
        }
        let hash = hasher.finalize().to_hex();
        Ok(Self {
            // Ray takes the name up to the first dot as that of a folder.
            name: format!("_ray_pkg_{}.zip", &hash[..32]),
            files,
            run_file,
            inputs: input_folder,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the path of the run file in the folder of the inputs.
    pub(super) fn run_file(&self) -> Option<&str> {
        self.run_file.as_deref()
    }

    /// Returns the archive (PKWARE APPNOTE 6.3, without extensions for large files).
    pub(super) fn archive(&self) -> Result<Vec<u8>, SubmitError> {
        let mut archive = ZipArchive::default();
        if self.files.is_empty() {
            archive.add("empty", 0o644, &[]);
        }
        for file in &self.files {
            let bytes = std::fs::read(&file.path).map_err(SubmitError::file("read", &file.path))?;
            archive.add(&file.name, file.mode, &bytes);
        }
        if let Some(inputs) = &self.inputs {
            inputs.check_unchanged()?;
        }
        archive.finish(&self.name)
    }
}

/// An archive in memory.
#[derive(Default)]
struct ZipArchive {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    entries: u32,
}

impl ZipArchive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        let mut crc = Crc::new();
        crc.update(content);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory does not fail.
        let packed = encoder.write_all(content).and_then(|()| encoder.finish());
        let packed = packed.unwrap_or_default();
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        let offset = number(self.bytes.len());
        // Version 2.0, names in UTF-8, deflated, at midnight of 1980-01-01.
        let mut common = vec![20, 0, 0, 8, 8, 0, 0, 0, 0x21, 0];
        common.extend(crc.sum().to_le_bytes());
        common.extend(number(packed.len()));
        common.extend(number(content.len()));
        common.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        common.extend([0, 0]);
        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&common);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(&packed);
        // Made by version 2.0 on Unix.
        self.directory.extend(b"PK\x01\x02\x14\x03");
        self.directory.extend(&common);
        self.directory.extend([0; 6]);
        self.directory
            .extend(((0o100_000 | mode) << 16).to_le_bytes());
        self.directory.extend(offset);
        self.directory.extend(name.as_bytes());
        self.entries += 1;
    }

    fn finish(mut self, name: &str) -> Result<Vec<u8>, SubmitError> {
        let (Ok(entries), Ok(offset), Ok(length)) = (
            u16::try_from(self.entries),
            u32::try_from(self.bytes.len()),
            u32::try_from(self.directory.len()),
        ) else {
            return Err(SubmitError::damaged(
                Path::new(name),
                "the package has too many files, or is too large",
            ));
        };
        self.bytes.append(&mut self.directory);
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        self.bytes.extend(entries.to_le_bytes());
        self.bytes.extend(entries.to_le_bytes());
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(offset.to_le_bytes());
        self.bytes.extend([0, 0]);
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_by_python_with_its_permissions() {
        let mut archive = ZipArchive::default();
        archive.add("ronde", 0o755, &[7; 100_000]);
        archive.add("inputs/ä.toml", 0o644, b"a = 1\n");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.zip");
        std::fs::write(&path, archive.finish("x").unwrap()).unwrap();
        let program = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                       print([(i.filename, oct(i.external_attr >> 16), i.file_size) for i in z.infolist()])";
        let Ok(output) = std::process::Command::new("python3")
            .args(["-c", program])
            .arg(&path)
            .output()
        else {
            return ronde_testing::skip("there is no python3");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            text.trim(),
            "[('ronde', '0o100755', 100000), ('inputs/ä.toml', '0o100644', 6)]",
            "{output:?}"
        );
    }
}
