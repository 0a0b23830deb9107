//! [`PeakMemory`]: the maximum memory of the largest process of a tree of processes.

use std::collections::BTreeMap;
use std::fs;

/// The number of polls between two searches for new processes, which at first follow after 1, 2, 4
/// polls and so on.
const SEARCH_EVERY: u32 = 64;
/// The number of polls between two readings of the known processes.
const READ_EVERY: u32 = 4;

/// The peak memory of each process of a tree. The kernel records it, so that polling misses only
/// growth right before a process ends.
pub(super) struct PeakMemory {
    root: u32,
    looks: u32,
    tree: Vec<u32>,
    bytes: u64,
}

impl PeakMemory {
    /// Observes a process and its descendants.
    pub(super) fn of(root: u32) -> Self {
        Self {
            root,
            looks: 0,
            tree: Vec::new(),
            bytes: 0,
        }
    }

    /// Polls once; most polls cost nothing.
    pub(super) fn look(&mut self) {
        let is_young = self.looks < SEARCH_EVERY && self.looks.is_power_of_two();
        let searches = is_young || self.looks.is_multiple_of(SEARCH_EVERY);
        if searches {
            self.tree = tree(self.root);
        }
        if searches || self.looks.is_multiple_of(READ_EVERY) {
            let peaks = self.tree.iter().filter_map(|&process| peak(process));
            self.bytes = self.bytes.max(peaks.max().unwrap_or(0));
        }
        self.looks += 1;
    }

    /// Returns the peak resident bytes of the largest process; 0 when unknown.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Returns a process and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent(&stat) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    found
}

/// Parses the parent in a line such as `12 (name) S 3 ...`; the name may contain any characters.
fn parent(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

fn peak(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_parsed_with_any_name() {
        assert_eq!(parent("12 (a) b) S 3 4 5"), Some(3));
        assert_eq!(parent("12 (a"), None);
        assert_eq!(parent(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_process_is_in_the_tree_and_has_a_size() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let own = tree(std::process::id());
        assert!(own.contains(&std::process::id()) && own.contains(&child.id()));
        let mut memory = PeakMemory::of(std::process::id());
        memory.look();
        assert!(memory.bytes() > 1 << 20, "{}", memory.bytes());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
