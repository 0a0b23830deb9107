//! [`HostSlots`]: a host and its number of slots, from `host1:2,host2:2` or a host file.

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;

/// The maximum number of slots of a host.
const SLOTS_MAX: u32 = 1000;

/// A host and the maximum number of workers on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostSlots {
    /// The host as `ssh` knows it: a name, an address, an alias of the SSH configuration, or `user@host`.
    pub host: String,
    /// The maximum number of workers.
    pub slots: u32,
}

impl HostSlots {
    /// Parses `host` or `host:slots`. Without a number, the host has one slot. The address of a host with IPv6 is in
    /// brackets: `[fe80::1]:2`.
    ///
    /// # Errors
    /// [`SubmitError::Invalid`]: the name or the number is not valid.
    pub fn parse(text: &str) -> Result<Self, SubmitError> {
        let invalid = || {
            SubmitError::invalid(
                format!("invalid host `{}`", text.escape_debug()),
                "write `HOST` or `HOST:SLOTS`, such as `gpu1:4`",
            )
        };
        let (host, slots) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(invalid)?;
                match rest.strip_prefix(':') {
                    Some(slots) => (host, Some(slots)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(invalid()),
                }
            }
            None => match text.split_once(':') {
                Some((host, slots)) => (host, Some(slots)),
                None => (text, None),
            },
        };
        let slots = match slots {
            Some(slots) => slots.parse().map_err(|_| invalid())?,
            None => 1,
        };
        let host = Self {
            host: host.to_owned(),
            slots,
        };
        match host.is_valid() {
            true => Ok(host),
            false => Err(invalid()),
        }
    }

    /// A name that begins with a dash would be an option of `ssh`.
    fn is_valid(&self) -> bool {
        let is_sign = |sign: char| !sign.is_whitespace() && !sign.is_control();
        (1..=SLOTS_MAX).contains(&self.slots)
            && !self.host.is_empty()
            && !self.host.starts_with('-')
            && self.host.chars().all(is_sign)
    }
}

impl TryFrom<String> for HostSlots {
    type Error = SubmitError;

    fn try_from(text: String) -> Result<Self, SubmitError> {
        Self::parse(&text)
    }
}

impl From<HostSlots> for String {
    fn from(host: HostSlots) -> Self {
        match host.host.contains(':') {
            true => format!("[{}]:{}", host.host, host.slots),
            false => format!("{}:{}", host.host, host.slots),
        }
    }
}

/// Parses `host1:2,host2:2`, as `-H` of `horovodrun` and `mpirun`.
///
/// # Errors
/// [`SubmitError::Invalid`]: a host is not valid or is named twice.
pub fn parse_hosts(text: &str) -> Result<Vec<HostSlots>, SubmitError> {
    let hosts = text.split(',').map(|host| HostSlots::parse(host.trim()));
    different(hosts.collect::<Result<_, _>>()?)
}

/// Parses a host file, as `horovodrun` and `mpirun` read it: a host per line, as `host`, `host:2`, `host slots=2` or
/// `host slots=2 max_slots=4`; `#` begins a comment. Other words of a line are refused.
///
/// # Errors
/// [`SubmitError::Invalid`]: names the line.
pub fn parse_host_file(text: &str) -> Result<Vec<HostSlots>, SubmitError> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else {
            continue;
        };
        let invalid = |word: &str| {
            SubmitError::invalid(
                format!(
                    "invalid host file, line {number}: `{}`",
                    word.escape_debug()
                ),
                "write a host per line: `gpu1 slots=4` or `gpu1:4`",
            )
        };
        let mut host = HostSlots::parse(name).map_err(|_| invalid(name))?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => host.slots = slots.parse().map_err(|_| invalid(word))?,
                // The limit of oversubscription, which ronde does not do.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => return Err(invalid(word)),
            }
        }
        if !host.is_valid() {
            return Err(invalid(line.trim()));
        }
        hosts.push(host);
    }
    different(hosts)
}

/// Refuses an empty list and repeated hosts.
pub(crate) fn different(hosts: Vec<HostSlots>) -> Result<Vec<HostSlots>, SubmitError> {
    if hosts.is_empty() {
        let help = "name at least one host, such as `gpu1:4`";
        return Err(SubmitError::invalid("the list of hosts is empty", help));
    }
    for (at, host) in hosts.iter().enumerate() {
        if hosts[..at].iter().any(|earlier| earlier.host == host.host) {
            return Err(SubmitError::invalid(
                format!("host `{}` is named twice", host.host.escape_debug()),
                "name each host once, with all of its slots",
            ));
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hosts: Result<Vec<HostSlots>, SubmitError>) -> String {
        match hosts {
            Ok(hosts) => hosts
                .iter()
                .map(|host| format!("{}*{}", host.host, host.slots))
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.to_string().lines().next().unwrap().to_owned(),
        }
    }

    #[test]
    fn lists_of_hosts_are_parsed() {
        for (text, expected) in [
            ("a:2,b:3", "a*2 b*3"),
            ("a", "a*1"),
            ("me@a:2, b", "me@a*2 b*1"),
            ("[fe80::1]:2,[::1]", "fe80::1*2 ::1*1"),
            ("", "invalid host ``"),
            ("a,,b", "invalid host ``"),
            ("a:0", "invalid host `a:0`"),
            ("a:x", "invalid host `a:x`"),
            ("-oProxyCommand=x", "invalid host `-oProxyCommand=x`"),
            ("a:1,a:2", "host `a` is named twice"),
        ] {
            assert_eq!(shown(parse_hosts(text)), expected, "{text}");
        }
    }

    #[test]
    fn host_files_of_other_launchers_are_read() {
        for (text, expected) in [
            (
                "# cluster\ngpu1 slots=4\n\n gpu2 slots=2 max_slots=8 # old\n",
                "gpu1*4 gpu2*2",
            ),
            ("gpu1:4\ngpu2\n", "gpu1*4 gpu2*1"),
            ("gpu1 slots=x", "invalid host file, line 1: `slots=x`"),
            ("gpu1\ngpu2 4", "invalid host file, line 2: `4`"),
            ("gpu1 slots=0", "invalid host file, line 1: `gpu1 slots=0`"),
            ("#\n", "the list of hosts is empty"),
        ] {
            assert_eq!(shown(parse_host_file(text)), expected, "{text}");
        }
    }
}
