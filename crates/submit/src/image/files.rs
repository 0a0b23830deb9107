//! The files of an image: the program, its libraries, a user, certificate authorities.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::{HOME, ImageContents, PROGRAM, USER};
use crate::error::SubmitError;

/// The certificate authorities of this machine, for object stores.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Folders that may have the loader under the name that programs have for it.
const LOADER_FOLDERS: [&str; 2] = ["/lib64", "/lib"];

/// Returns the files of libraries that this process has mapped.
pub(super) fn loaded_libraries(program: &Path) -> Result<Vec<PathBuf>, SubmitError> {
    let maps = Path::new("/proc/self/maps");
    let text = std::fs::read_to_string(maps).map_err(SubmitError::file("read", maps))?;
    let program = program
        .canonicalize()
        .unwrap_or_else(|_| program.to_owned());
    let paths: BTreeSet<PathBuf> = text
        .lines()
        .filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])))
        .filter(|path| path.to_string_lossy().contains(".so") && *path != program)
        .filter(|path| path.is_file())
        .collect();
    Ok(paths.into_iter().collect())
}

/// Returns the layer as a tar archive in an unnamed file.
pub(super) fn layer(contents: &ImageContents) -> Result<File, SubmitError> {
    let failed = |cause| SubmitError::File {
        action: "write",
        path: PathBuf::from("the layer of an image"),
        cause,
    };
    let file = tempfile::tempfile().map_err(failed)?;
    let mut layer = LayerWriter {
        archive: Builder::new(file),
        folders: BTreeSet::new(),
    };
    layer.add(contents).map_err(failed)?;
    let mut file = layer.archive.into_inner().map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Writes the entries of a layer: without times and names of this machine, so that equal files give equal bytes.
struct LayerWriter {
    archive: Builder<File>,
    /// The folders that have been written.
    folders: BTreeSet<PathBuf>,
}

impl LayerWriter {
    fn add(&mut self, contents: &ImageContents) -> std::io::Result<()> {
        self.text(
            "etc/passwd",
            &format!("root:x:0:0::/:/nologin\nnonroot:x:{USER}:{USER}::/{HOME}:/nologin\n"),
        )?;
        self.text("etc/group", &format!("root:x:0:\nnonroot:x:{USER}:\n"))?;
        if Path::new(AUTHORITIES).is_file() {
            self.file(Path::new(AUTHORITIES), Path::new(AUTHORITIES), 0o644)?;
        }
        self.folder(Path::new("home"), 0o755, 0)?;
        self.folder(Path::new(HOME), 0o755, u64::from(USER))?;
        self.folder(Path::new("tmp"), 0o1777, 0)?;
        for library in &contents.libraries {
            self.file(library, library, 0o755)?;
            self.links(library)?;
        }
        self.file(&contents.program, Path::new(PROGRAM), 0o755)?;
        self.archive.finish()
    }

    /// Writes the links to a library: those beside it, and the name of the loader in programs.
    fn links(&mut self, library: &Path) -> std::io::Result<()> {
        let beside = library.parent().map(Path::to_owned).into_iter();
        let folders = beside.chain(LOADER_FOLDERS.map(PathBuf::from));
        let mut links = BTreeSet::new();
        for folder in folders {
            let Ok(entries) = std::fs::read_dir(&folder) else {
                continue;
            };
            let paths = entries.flatten().map(|entry| entry.path());
            links.extend(paths.filter(|path| {
                let is_library = path.to_string_lossy().contains(".so");
                is_library && path.canonicalize().is_ok_and(|to| to == library) && path != library
            }));
        }
        for link in links {
            self.parents(&link)?;
            let mut header = header(EntryType::Symlink, 0o777, 0);
            header.set_size(0);
            self.archive
                .append_link(&mut header, inside(&link), library)?;
        }
        Ok(())
    }

    fn text(&mut self, path: &str, text: &str) -> std::io::Result<()> {
        self.parents(Path::new(path))?;
        let mut header = header(EntryType::Regular, 0o644, 0);
        header.set_size(text.len() as u64);
        self.archive.append_data(&mut header, path, text.as_bytes())
    }

    fn file(&mut self, from: &Path, to: &Path, mode: u32) -> std::io::Result<()> {
        self.parents(to)?;
        let file = File::open(from)?;
        let mut header = header(EntryType::Regular, mode, 0);
        header.set_size(file.metadata()?.len());
        self.archive.append_data(&mut header, inside(to), file)
    }

    /// Writes the folders above a path.
    fn parents(&mut self, path: &Path) -> std::io::Result<()> {
        let path = inside(path);
        let mut above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
        above.retain(|folder| !folder.as_os_str().is_empty());
        above
            .into_iter()
            .rev()
            .try_for_each(|folder| self.folder(&folder, 0o755, 0))
    }

    fn folder(&mut self, path: &Path, mode: u32, user: u64) -> std::io::Result<()> {
        if !self.folders.insert(path.to_owned()) {
            return Ok(());
        }
        let mut header = header(EntryType::Directory, mode, user);
        header.set_size(0);
        self.archive
            .append_data(&mut header, path, std::io::empty())
    }
}

/// Returns a path relative to the root of the image.
fn inside(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn header(kind: EntryType, mode: u32, user: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(user);
    header.set_gid(user);
    header.set_mtime(0);
    header
}
