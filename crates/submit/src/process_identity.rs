//! [`ProcessIdentity`]: a process of one host, distinguished from a later process with the same number.

use serde::{Deserialize, Serialize};

/// A process: its number, when it was started, and in which boot of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its number, which a later process may have again.
    pub pid: u32,
    /// When it was started, in clock ticks since the boot.
    pub started: u64,
    /// The boot of the host.
    pub boot: String,
}

/// The fields of `/proc/PID/stat` that are needed.
pub(crate) struct ProcessStat {
    pub(crate) session: u32,
    pub(crate) started: u64,
    pub(crate) is_zombie: bool,
}

impl ProcessIdentity {
    /// Returns the identity of this process.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn of_this_process() -> std::io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Returns the identity of the process that has the number `pid` now.
    pub(crate) fn of(pid: u32) -> std::io::Result<Self> {
        Ok(Self {
            pid,
            started: stat(pid)?.started,
            boot: boot()?,
        })
    }

    /// Returns whether the process exists and has not ended.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let same = stat(self.pid).is_ok_and(|stat| stat.started == self.started && !stat.is_zombie);
        same && boot().is_ok_and(|boot| boot == self.boot)
    }

    /// Returns whether its number may still be that of its session: the host has not been started again, and no other
    /// process has the number. The number of a session is not used again while the session has a process.
    pub(crate) fn may_own_session(&self) -> bool {
        let is_taken = stat(self.pid).is_ok_and(|stat| stat.started != self.started);
        !is_taken && boot().is_ok_and(|boot| boot == self.boot)
    }
}

/// Reads `/proc/PID/stat`.
pub(crate) fn stat(pid: u32) -> std::io::Result<ProcessStat> {
    let text = std::fs::read(format!("/proc/{pid}/stat"))?;
    let text = String::from_utf8_lossy(&text);
    parse(&text).ok_or_else(|| std::io::Error::other("/proc/PID/stat has another form"))
}

fn parse(text: &str) -> Option<ProcessStat> {
    // The name of the program is in parentheses and may contain anything.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(ProcessStat {
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn boot() -> std::io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(boot.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_number_of_an_earlier_one_is_another_process() {
        let me = ProcessIdentity::of_this_process().unwrap();
        assert!(me.is_alive() && me.may_own_session());
        let earlier = ProcessIdentity {
            started: me.started - 1,
            ..me.clone()
        };
        let boot = ProcessIdentity {
            boot: "another".to_owned(),
            ..me
        };
        for other in [earlier, boot] {
            assert!(!other.is_alive() && !other.may_own_session(), "{other:?}");
        }
    }

    #[test]
    fn names_of_programs_do_not_confuse_the_fields() {
        let rest = "S 1 2 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 1";
        let stat = parse(&format!("5 (a) R (b) {rest}")).unwrap();
        assert_eq!(
            (stat.session, stat.started, stat.is_zombie),
            (77, 987, false)
        );
        assert!(parse("5 (a").is_none() && parse("5 (a) S 1").is_none());
    }
}
