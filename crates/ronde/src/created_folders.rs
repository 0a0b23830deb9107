//! [`CreatedFolders`]: a command that refuses to start leaves no empty folder.

use std::path::{Path, PathBuf};

/// The folders that this process has created for a path, the innermost first.
#[derive(Debug)]
pub struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    /// Creates a folder and those around it that do not exist.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let path = std::path::absolute(path)?;
        let missing = path.ancestors().take_while(|folder| !folder.exists());
        let missing = missing.map(Path::to_owned).collect();
        std::fs::create_dir_all(&path)?;
        Ok(Self(missing))
    }

    /// Removes the folders that are empty.
    pub fn remove_empty(&self) {
        for folder in &self.0 {
            // The system refuses it for a folder that is in use.
            if std::fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_and_empty_folders_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let outer = dir.path().join("a");
        let created = CreatedFolders::create(&outer.join("b/c")).unwrap();
        std::fs::create_dir(outer.join("other")).unwrap();
        created.remove_empty();
        assert!(!outer.join("b").exists());
        assert!(outer.join("other").exists(), "of another process");
        let created = CreatedFolders::create(&outer).unwrap();
        std::fs::remove_dir(outer.join("other")).unwrap();
        created.remove_empty();
        assert!(outer.exists(), "it was there before");
    }
}
