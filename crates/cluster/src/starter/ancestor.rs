//! [`launcher_process`]: the process that has started the ranks of this host.

use rustix::process::getppid;

/// The maximum number of processes between a launcher and a rank.
const ANCESTORS_MAX: usize = 32;

/// Returns the number of the closest ancestor of this process that does not have a variable in its environment: the
/// launcher that has set it. It is the same for all ranks on one host, however many shells are between. `None` without
/// `/proc`.
#[must_use]
pub fn launcher_process(variable: &str) -> Option<u32> {
    let prefix = format!("{variable}=");
    let mut ancestor = getppid()?.as_raw_nonzero().get();
    for _ in 0..ANCESTORS_MAX {
        let environment = std::fs::read(format!("/proc/{ancestor}/environ")).ok()?;
        let has_variable = environment
            .split(|&byte| byte == 0)
            .any(|entry| entry.starts_with(prefix.as_bytes()));
        if !has_variable {
            return u32::try_from(ancestor).ok();
        }
        let stat = std::fs::read_to_string(format!("/proc/{ancestor}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        ancestor = fields.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}
