//! [`MemoryReports`]: when a worker reports the memory of its process, and its size.

/// Seconds of training between two reports.
const EVERY_S: f64 = 2.0;

/// The memory of a process in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Bytes in physical memory.
    pub(crate) resident: u64,
    /// The largest number of bytes in physical memory since the process started.
    pub(crate) peak: u64,
}

impl ProcessMemory {
    /// Reads the memory of this process; `None` where the system does not report it. Takes about 20 microseconds.
    pub(crate) fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    /// Parses the text of `/proc/self/status`.
    fn parse(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Self {
            resident: bytes("VmRSS:")?,
            peak: bytes("VmHWM:")?,
        })
    }
}

/// Decides after which steps the memory is reported: the first one, and then one every two seconds.
#[derive(Debug, Default)]
pub(crate) struct MemoryReports {
    left_s: f64,
}

impl MemoryReports {
    /// Counts a step and returns whether the memory is to be reported after it.
    pub(crate) fn is_due(&mut self, step_s: f64) -> bool {
        self.left_s -= step_s.max(0.0);
        let is_due = self.left_s <= 0.0;
        if is_due {
            self.left_s = EVERY_S;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_and_then_one_every_two_seconds_is_due() {
        let mut reports = MemoryReports::default();
        let due: Vec<usize> = (0..10).filter(|_| reports.is_due(0.75)).collect();
        assert_eq!(due, [0, 3, 6, 9]);
        assert!(MemoryReports::default().is_due(f64::NAN.max(0.0)));
    }

    #[test]
    fn the_memory_of_this_process_is_read_and_damaged_text_is_not() {
        let now = ProcessMemory::read().unwrap();
        assert!(now.resident > 0 && now.peak >= now.resident, "{now:?}");
        for text in ["", "VmRSS:\t 5 kB", "VmRSS: x kB\nVmHWM: 5 kB"] {
            assert_eq!(ProcessMemory::parse(text), None);
        }
    }
}
