//! Resources of this host: available memory and free disk space.

use std::path::Path;

/// Returns the bytes that new processes can allocate before the host or its control group runs out, or
/// `None` where the system does not report them.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    let host = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text))?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = control_groups_left(&groups, Path::new("/sys/fs/cgroup"));
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

/// Returns the fewest bytes that are left below the memory limits of the control groups of a process and of those that contain them.
/// `groups` is the text of `/proc/self/cgroup`, and `root` the folder of all groups.
fn control_groups_left(groups: &str, root: &Path) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (folder, names) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
                (root.join("memory"), names)
            }
            _ => return None,
        };
        // In a container, the folder itself may be the group of the process.
        let within = Path::new(path.trim_start_matches('/')).ancestors();
        within
            .filter_map(|group| control_group_left(&folder.join(group), names))
            .min()
    });
    left.min()
}

/// Returns the bytes left below the limit of one control group; cached files that are not in use count as free.
fn control_group_left(folder: &Path, [limit, used]: [&str; 2]) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let cached = text("memory.stat").and_then(|stat| {
        let value = |key: &str| {
            let mut lines = stat.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
            value.trim().parse::<u64>().ok()
        };
        value("total_inactive_file").or_else(|| value("inactive_file"))
    });
    let used = number(used)?.saturating_sub(cached.unwrap_or(0));
    Some(number(limit)?.saturating_sub(used))
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

    #[test]
    fn the_tightest_of_the_control_groups_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("slice/memory.max", "1000\n");
        write("slice/memory.current", "700\n");
        write("slice/memory.stat", "anon 100\ninactive_file 300\n");
        write("slice/job/memory.max", "max\n");
        write("slice/job/memory.current", "10\n");
        let left = |groups: &str| control_groups_left(groups, folder.path());
        assert_eq!(left("0::/slice/job\n"), Some(600));
        assert_eq!(left("0::/slice/job/unknown\n"), Some(600));
        assert_eq!(left("0::/other\n"), None);
        write("memory/job/memory.limit_in_bytes", "500");
        write("memory/job/memory.usage_in_bytes", "200");
        write(
            "memory/job/memory.stat",
            "inactive_file 5\ntotal_inactive_file 100\n",
        );
        let both = "12:cpu,cpuacct:/\n4:memory:/job\n0::/slice\n";
        assert_eq!(left(both), Some(400));
        assert_eq!(left("4:memory:/\n"), None);
        // In a container, the group of the process is the folder itself.
        write("memory.max", "50");
        write("memory.current", "60");
        assert_eq!(left("0::/\n"), Some(0));
        assert_eq!(left("nonsense\n:\n"), None);
    }
}
