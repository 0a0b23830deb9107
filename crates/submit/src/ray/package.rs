//! [`RayPackage`]: the program and the folder of the run file as an archive that the nodes of a cluster unpack.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::path::EntryPath;
use rawzip::{CompressionMethod, ZipArchiveWriter};

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

    /// Returns the archive.
    pub(super) fn archive(&self) -> Result<Vec<u8>, SubmitError> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        if self.files.is_empty() {
            add(&mut archive, "empty", 0o644, &[])?;
        }
        for file in &self.files {
            let bytes = std::fs::read(&file.path).map_err(SubmitError::file("read", &file.path))?;
            add(&mut archive, &file.name, file.mode, &bytes)?;
        }
        if let Some(inputs) = &self.inputs {
            inputs.check_unchanged()?;
        }
        finished(archive.finish(), &self.name)
    }
}

/// Adds a compressed file to an archive in memory.
fn add(
    archive: &mut ZipArchiveWriter<Vec<u8>>,
    name: &str,
    mode: u32,
    content: &[u8],
) -> Result<(), SubmitError> {
    // The library marks names as UTF-8 only after it has removed what Windows reads as a drive or a folder.
    let path = match name.is_ascii() {
        true => EntryPath::verbatim(name.as_bytes()),
        false if name.contains([':', '\\']) => {
            return Err(SubmitError::invalid(
                format!("cannot send {name} to the cluster: a name with `:` or `\\` must be ASCII"),
                "rename the file",
            ));
        }
        false => EntryPath::conformant(name),
    };
    let file = archive.new_file(path).unix_permissions(0o100_000 | mode);
    let file = file.compression_method(CompressionMethod::DEFLATE);
    let (mut file, config) = finished(file.start(), name)?;
    let mut writer = config.wrap(DeflateEncoder::new(&mut file, Compression::fast()));
    let written = writer.write_all(content).map_err(rawzip::Error::from);
    let (encoder, descriptor) = finished(written.and_then(|()| writer.finish()), name)?;
    finished(encoder.finish().map_err(rawzip::Error::from), name)?;
    finished(file.finish(descriptor), name).map(|_| ())
}

fn finished<T>(result: Result<T, rawzip::Error>, name: &str) -> Result<T, SubmitError> {
    result.map_err(|error| SubmitError::damaged(Path::new(name), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_by_python_with_its_permissions() {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        add(&mut archive, "ronde", 0o755, &[7; 100_000]).unwrap();
        add(&mut archive, "inputs/ä.toml", 0o644, b"a = 1\n").unwrap();
        add(&mut archive, "inputs/12:30\\a", 0o644, b"").unwrap();
        add(&mut archive, "inputs/ä:a", 0o644, b"").unwrap_err();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.zip");
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
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
            "[('ronde', '0o100755', 100000), ('inputs/ä.toml', '0o100644', 6), ('inputs/12:30\\\\a', '0o100644', 0)]",
            "{output:?}"
        );
    }
}
