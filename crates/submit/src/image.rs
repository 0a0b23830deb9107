//! [`ImageContents`]: container images of `ronde` without a container engine, and the Containerfile for one.
//!
//! Runs with the same dependencies share one image, which is named by their hash. The image has the program, the libraries
//! that it loads and a user that is not root, and nothing else: no shell, no package manager.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::error::SubmitError;

mod files;
mod layout;

pub use layout::ImageDigest;

/// The user and the group of the processes.
const USER: u32 = 65_532;
/// The path of the program.
const PROGRAM: &str = "usr/local/bin/ronde";
/// The home folder of the user.
const HOME: &str = "home/nonroot";
/// The image in which the program is built.
const BUILD_IMAGE: &str = "docker.io/library/rust";
/// The image with the C library alone, for a user that is not root.
const BASE_IMAGE: &str = "gcr.io/distroless/cc-debian12:nonroot";
/// The number of letters of the hash in a name.
const TAG_LETTERS: usize = 12;

/// The dependencies of a run's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageDependencies {
    /// The version of `ronde`.
    pub version: String,
    /// The version of Rust that builds it.
    pub rust: String,
    /// The features of the build.
    pub features: BTreeSet<String>,
    /// Whether oneDNN is loaded.
    pub has_onednn: bool,
}

impl ImageDependencies {
    /// Returns the name of the image: `ronde`, and a hash of the dependencies.
    #[must_use]
    pub fn name(&self) -> String {
        let mut hash = blake3::Hasher::new_derive_key("ronde image, version 1");
        hash.update(self.containerfile_of("").as_bytes());
        hash.update(self.version.as_bytes());
        let tag: String = hash.finalize().to_hex().chars().take(TAG_LETTERS).collect();
        format!("ronde:{tag}")
    }

    /// Returns the Containerfile, whose context is the source of `ronde`.
    #[must_use]
    pub fn containerfile(&self) -> String {
        let name = self.name();
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        let features = match features.is_empty() {
            true => "without further features".to_owned(),
            false => format!("with {}", features.join(", ")),
        };
        self.containerfile_of(&format!(
            "# {name}: ronde {} {features}, for all runs with these dependencies.\n\
             # In the folder with the source of ronde: podman build -t {name} -f Containerfile .\n",
            self.version
        ))
    }

    fn containerfile_of(&self, head: &str) -> String {
        let mut text = head.to_owned();
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        let features = match features.is_empty() {
            true => String::new(),
            false => format!(" --features {}", features.join(",")),
        };
        let (packages, copy) = match self.has_onednn {
            true => (
                " libdnnl-dev",
                "RUN mkdir /libraries && cp -L /usr/lib/*/libdnnl.so.? /usr/lib/*/libgomp.so.1 /libraries/\n",
            ),
            false => ("", ""),
        };
        // Writing to a text cannot fail.
        let _ = write!(
            text,
            "FROM {BUILD_IMAGE}:{}-slim-bookworm AS build\n\
             RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev{packages}\n{copy}\
             WORKDIR /source\n\
             COPY . .\n\
             RUN cargo install --locked --path crates/ronde{features} --root /install\n\n\
             FROM {BASE_IMAGE}\n\
             COPY --from=build /install/bin/ronde /{PROGRAM}\n",
            self.rust
        );
        if self.has_onednn {
            text.push_str("COPY --from=build /libraries/ /usr/local/lib/\nENV LD_LIBRARY_PATH=/usr/local/lib\n");
        }
        let _ = write!(
            text,
            "USER {USER}:{USER}\nWORKDIR /{HOME}\nENTRYPOINT [\"/{PROGRAM}\"]\n"
        );
        text
    }
}

/// The files of an image that is made from a program of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageContents {
    /// The program.
    pub program: PathBuf,
    /// The libraries that it loads, with the loader.
    pub libraries: Vec<PathBuf>,
}

impl ImageContents {
    /// Finds the libraries that this process has loaded, which is `program`.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_this_process(program: &Path) -> Result<Self, SubmitError> {
        Ok(Self {
            program: program.to_owned(),
            libraries: files::loaded_libraries(program)?,
        })
    }

    /// Writes the image as a tar archive with the layout of the Open Container Initiative (image-spec 1.1), which `podman
    /// load`, `docker load` and `skopeo` read. Equal files give equal bytes. Returns the digest of its manifest.
    ///
    /// # Errors
    /// A file cannot be read, or the archive cannot be written.
    pub fn write(&self, name: &str, to: &Path) -> Result<ImageDigest, SubmitError> {
        let layer = files::layer(self)?;
        layout::write(&layer, name, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependencies(features: &[&str], has_onednn: bool) -> ImageDependencies {
        ImageDependencies {
            version: "0.1.0".to_owned(),
            rust: "1.95".to_owned(),
            features: features.iter().map(|name| (*name).to_owned()).collect(),
            has_onednn,
        }
    }

    #[test]
    fn the_name_depends_on_the_dependencies_alone() {
        let plain = dependencies(&[], false);
        assert_eq!(plain.name(), dependencies(&[], false).name());
        let others = [
            dependencies(&["full"], false),
            dependencies(&["full"], true),
        ];
        let mut names: Vec<String> = others.iter().map(ImageDependencies::name).collect();
        names.push(plain.name());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3);
        assert!(
            names
                .iter()
                .all(|name| name.len() == "ronde:".len() + TAG_LETTERS)
        );
    }

    #[test]
    fn a_containerfile_has_no_root_and_no_shell_in_its_last_stage() {
        let text = dependencies(&["full"], true).containerfile();
        for line in [
            "FROM docker.io/library/rust:1.95-slim-bookworm AS build",
            "RUN cargo install --locked --path crates/ronde --features full --root /install",
            "COPY --from=build /libraries/ /usr/local/lib/",
            "USER 65532:65532",
            "ENTRYPOINT [\"/usr/local/bin/ronde\"]",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let (_, last) = text.split_once("FROM gcr.io").unwrap();
        assert!(!last.contains("\nRUN"), "{last}");
        assert!(!dependencies(&[], false).containerfile().contains("dnnl"));
    }

    #[test]
    fn an_image_of_this_process_has_a_layout_that_is_the_same_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let contents = ImageContents::of_this_process(&program).unwrap();
        assert!(
            contents
                .libraries
                .iter()
                .any(|path| path.display().to_string().contains("libc.so"))
        );
        let (a, b) = (dir.path().join("a.tar"), dir.path().join("b.tar"));
        let digest = contents.write("ronde:test", &a).unwrap();
        assert_eq!(contents.write("ronde:test", &b).unwrap(), digest);
        assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
        let mut archive = tar::Archive::new(std::fs::File::open(&a).unwrap());
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert!(names.contains(&"oci-layout".to_owned()), "{names:?}");
        assert_eq!(
            names
                .iter()
                .filter(|name| name.starts_with("blobs/sha256/"))
                .count(),
            3
        );
    }
}
