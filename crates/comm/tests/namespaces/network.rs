//! [`Network`]: hosts that are network namespaces on a bridge, and cuts between them.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// A link address that no host has: frames to it are lost.
const NOBODY: &str = "02:00:00:00:00:fe";

/// Runs `ip`; returns its error output.
fn ip(arguments: &str) -> Result<(), String> {
    let outcome = Command::new("ip")
        .args(arguments.split_whitespace())
        .output();
    let outcome = outcome.map_err(|error| format!("ip: {error}"))?;
    if outcome.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&outcome.stderr);
    Err(format!("ip {arguments}: {}", said.trim()))
}

/// Namespaces on a bridge in a separate namespace, so that removing them leaves nothing behind.
pub(crate) struct Network {
    name: String,
    hosts: usize,
}

impl Network {
    /// Creates the namespaces; prints the reason and returns `None` if that is not possible.
    pub(crate) fn new(test: &str, hosts: usize) -> Option<Self> {
        remove_abandoned();
        let name = format!("ronde-{}-{test}", std::process::id());
        let network = Self { name, hosts };
        match network.set_up() {
            Ok(()) => Some(network),
            Err(problem) => {
                ronde_testing::skip(&problem);
                None
            }
        }
    }

    /// Returns the name of a host's namespace.
    pub(crate) fn host(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }

    fn set_up(&self) -> Result<(), String> {
        let hub = format!("{}-hub", self.name);
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add bridge type bridge"))?;
        ip(&format!("-n {hub} link set bridge up"))?;
        for host in 0..self.hosts {
            let name = self.host(host);
            ip(&format!("netns add {name}"))?;
            ip(&format!(
                "-n {hub} link add port{host} type veth peer name net netns {name}"
            ))?;
            ip(&format!("-n {hub} link set port{host} master bridge up"))?;
            ip(&format!("-n {name} addr add {}/24 dev net", address(host)))?;
            ip(&format!("-n {name} link set net up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(())
    }

    /// Cuts a host off.
    pub(crate) fn cut(&self, host: usize) {
        ip(&format!("-n {}-hub link set port{host} down", self.name)).unwrap();
    }

    /// Undoes [`Network::cut`].
    pub(crate) fn mend(&self, host: usize) {
        ip(&format!("-n {}-hub link set port{host} up", self.name)).unwrap();
    }

    /// Drops all packets from one host to another; the opposite direction still works.
    pub(crate) fn cut_way(&self, from: usize, to: usize) {
        let (name, address) = (self.host(from), address(to));
        ip(&format!(
            "-n {name} neigh replace {address} lladdr {NOBODY} dev net nud permanent"
        ))
        .unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 0..self.hosts {
            let _gone = ip(&format!("netns del {}", self.host(host)));
        }
        let _gone = ip(&format!("netns del {}-hub", self.name));
    }
}

/// Removes namespaces of earlier test programs that were killed.
fn remove_abandoned() {
    let Ok(listed) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for name in listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let mut parts = name.split('-');
        let is_ours = parts.next() == Some("ronde");
        let owner = parts.next().and_then(|pid| pid.parse::<u32>().ok());
        if is_ours && owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _gone = ip(&format!("netns del {name}"));
        }
    }
}

/// Returns a host's address.
pub(crate) fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}
