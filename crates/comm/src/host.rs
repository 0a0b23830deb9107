//! The identity of this host, as far as the network is concerned.
//!
//! With TLS, a connection within a host continues without encryption once both ends have authenticated each other, unless
//! `comm.transport` is `"tcp"`: both ends see one IP address and report this identity.

use ronde_core::byte_reader::number;

use crate::program;

/// Returns a number for the host of this thread's connections: the same for all of its processes
/// until it is restarted. A network namespace counts as a separate host, because its traffic goes
/// through a link. 0 if the system does not provide an identity.
pub(crate) fn this_host() -> u64 {
    let mut identity = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if identity.is_empty() {
        return 0;
    }
    let network = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    identity.extend(network.as_os_str().as_encoded_bytes());
    program::fnv(identity.chunks(4).map(|bytes| number(bytes) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_for_all_of_its_threads() {
        let other = std::thread::spawn(this_host).join().unwrap();
        assert_eq!((this_host(), other != 0), (other, true));
    }
}
