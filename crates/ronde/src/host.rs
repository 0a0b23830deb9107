//! Resources of this host: available memory and free disk space.

use std::path::Path;

/// Returns the bytes that new processes can allocate before the host or its control group runs out, or
/// `None` where the system does not report them.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    let host = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text))?;
    let group = control_group_left(Path::new("/sys/fs/cgroup"));
    Some(group.map_or(host, |left| left.min(host)))
}

/// Returns the free bytes of the file system at `path`, which need not exist yet, or `None` where the
/// system does not report them.
#[must_use]
pub fn free_disk_bytes(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|folder| folder.exists());
    let disk = rustix::fs::statvfs(existing.unwrap_or(Path::new("."))).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the bytes left below the memory limit of the control group (version 2).
fn control_group_left(folder: &Path) -> Option<u64> {
    let number = |name: &str| {
        std::fs::read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_parsed_and_invalid_text_is_not() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(mem_available(text), Some(20_000_000 * 1024));
        assert_eq!(mem_available("MemAvailable: much kB"), None);
        assert_eq!(mem_available(""), None);
        assert!(free_disk_bytes(Path::new("not/there/yet")).is_some());
        assert!(available_memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
