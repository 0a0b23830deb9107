//! [`Machine`]: the processor, its cores and caches, as reported by the system.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One cache of the first core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The machine of the measurements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The model of the processor; empty when unknown.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// Whether the process that started this one may use more cores, as when mpirun binds its ranks.
    pub is_bound: bool,
    /// The caches of the first core.
    pub caches: Vec<CpuCache>,
    /// The kernel and its version; empty when unknown.
    pub kernel: String,
}

impl Machine {
    /// Returns a description of this machine.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: model(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_bound: {
                let own = read("/proc/self/status");
                let parent = format!("/proc/{}/status", std::os::unix::process::parent_id());
                allowed_cores(&own) < allowed_cores(&read(&parent))
            },
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        }
    }

    /// Returns the size of the largest cache in bytes; 0 when unknown.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        let data = self
            .caches
            .iter()
            .filter(|cache| cache.kind != "Instruction");
        data.map(|cache| cache.bytes).max().unwrap_or(0)
    }
}

/// Returns the number of cores that a process may use, from its file `status`; `None` when unknown.
fn allowed_cores(status: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let digits = line.chars().filter_map(|digit| digit.to_digit(16));
    Some(digits.map(u32::count_ones).sum())
}

fn model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

fn caches(folder: &Path) -> Vec<CpuCache> {
    let read = |index: u32, file: &str| {
        let path = folder.join(format!("index{index}")).join(file);
        std::fs::read_to_string(path).ok()
    };
    let cache = |index| {
        Some(CpuCache {
            level: read(index, "level")?.trim().parse().ok()?,
            kind: read(index, "type")?.trim().to_owned(),
            bytes: cache_size(read(index, "size")?.trim())?,
        })
    };
    (0..8).map_while(cache).collect()
}

/// Parses `48K` or `2M`.
fn cache_size(text: &str) -> Option<u64> {
    let scale = match text.chars().last()? {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1]
        .parse::<u64>()
        .ok()?
        .checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_parsed_and_invalid_text_is_ignored() {
        assert_eq!(cache_size("48K"), Some(48 << 10));
        assert_eq!(cache_size("2M"), Some(2 << 20));
        assert_eq!(cache_size("much"), None);
        assert_eq!(cache_size(""), None);
        assert_eq!(model("processor: 0\nmodel name\t: A CPU\n"), "A CPU");
        assert_eq!(model(""), "");
        assert_eq!(allowed_cores("Cpus_allowed:\tff,00000003\n"), Some(10));
        assert_eq!(allowed_cores(""), None);
        let folder = tempfile::tempdir().unwrap();
        for (index, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "64K"),
            (2, "2", "Unified", "2048K"),
        ] {
            let folder = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&folder).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        let caches = caches(folder.path());
        assert_eq!(caches.len(), 3);
        assert_eq!((caches[2].level, caches[2].bytes), (2, 2 << 20));
        let machine = Machine::here();
        assert!(machine.cores > 0 && machine.kernel.starts_with("Linux"));
    }
}
