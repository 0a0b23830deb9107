//! The space that is left on the disk of a folder.

use std::path::Path;

/// Free bytes below which a disk counts as full: less than a process needs for its next records.
const FREE_BYTES_MIN: u64 = 64 << 10;

/// Returns the problem of the disk of a folder, if it is full. A disk that does not report its space has none.
pub(crate) fn problem(folder: &Path) -> Option<String> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems report no number of files or blocks at all.
    let is_full = disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_BYTES_MIN;
    let has_no_files = disk.f_files > 0 && disk.f_favail == 0;
    (is_full || has_no_files).then(|| {
        format!(
            "the disk of {} is full, so its output and progress are not stored; free some space",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_space_and_one_that_reports_none_have_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(problem(dir.path()), None);
        assert_eq!(problem(Path::new("/proc")), None);
        assert_eq!(problem(&dir.path().join("gone")), None);
    }
}
