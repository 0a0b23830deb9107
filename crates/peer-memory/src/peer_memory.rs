//! Values of another process of this host, read in its memory: [`PeerMemory`] reads, [`LendingMark`] limits the time.
//!
//! Between two processes of one host, a socket copies values twice. `process_vm_readv` copies them once, but the other
//! process may free the memory in the meantime. Each connection, or group of connections, therefore has a mark, a random
//! number at an address that is never freed. A reader reads the mark after the values: it is unchanged only if the values were valid until then.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// Marks that have ended, for new ones. Their memory is never freed, since a peer may still read it.
static UNUSED_MARKS: Mutex<Vec<&'static AtomicU64>> = Mutex::new(Vec::new());

/// Where a process lets its peer read: its number in the system, and the address and contents of a mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendingOffer {
    /// The number of the process in the system.
    pub process: u32,
    /// The address of the mark in its memory.
    pub mark_address: u64,
    /// The contents of the mark while values are lent; never 0.
    pub mark: u64,
}

/// A mark of this process: while it has its contents, lent values are valid.
#[derive(Debug)]
pub struct LendingMark {
    contents: &'static AtomicU64,
    mark: u64,
}

impl LendingMark {
    /// Returns a new mark; `None` if the system has no random numbers.
    #[must_use]
    pub fn new() -> Option<Self> {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
        // Zero is a mark that has ended.
        let mark = u64::from_ne_bytes(bytes).max(1);
        let unused = UNUSED_MARKS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let contents = unused.unwrap_or_else(|| Box::leak(Box::default()));
        contents.store(mark, Ordering::SeqCst);
        Some(Self { contents, mark })
    }

    /// Returns where peers read the mark.
    #[must_use]
    pub fn offer(&self) -> LendingOffer {
        LendingOffer {
            process: std::process::id(),
            mark_address: std::ptr::from_ref(self.contents) as u64,
            mark: self.mark,
        }
    }

    /// Ends the validity of all lent values. Only then may they be freed or changed.
    pub fn end(&self) {
        self.contents.store(0, Ordering::SeqCst);
    }
}

impl Drop for LendingMark {
    fn drop(&mut self) {
        self.end();
        let mut unused = UNUSED_MARKS.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(self.contents);
    }
}

/// The memory of a peer on this host, as far as it lends values.
#[derive(Debug)]
pub struct PeerMemory(LendingOffer);

impl PeerMemory {
    /// Returns the memory of a peer if this process may read it: not without the permission to trace the peer, and not
    /// if the offer means another process or host.
    #[must_use]
    pub fn open(offer: LendingOffer) -> Option<Self> {
        let memory = Self(offer);
        memory.read(memory.0.mark_address, &mut [0; 8]).ok()?;
        Some(memory)
    }

    /// Fills `into` with the bytes at `address` of the peer's memory.
    ///
    /// # Errors
    /// Those of the system; `InvalidData` if the peer no longer lends them.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut mark = [0; 8];
        copy_from_process(
            self.0.process,
            [(address, into), (self.0.mark_address, &mut mark)],
        )?;
        if u64::from_ne_bytes(mark) == self.0.mark {
            return Ok(());
        }
        let cause = "it withdrew its values while they were read";
        Err(io::Error::new(ErrorKind::InvalidData, cause))
    }
}

/// Copies from addresses of another process, in the given order.
#[expect(unsafe_code, reason = "rustix has no process_vm_readv")]
fn copy_from_process(process: u32, mut pieces: [(u64, &mut [u8]); 2]) -> io::Result<()> {
    let expected: usize = pieces.iter().map(|(_, into)| into.len()).sum();
    let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
    let local = pieces.each_mut().map(|(_, into)| libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    });
    let remote = pieces.each_ref().map(|(address, into)| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(*address as usize),
        iov_len: into.len(),
    });
    // SAFETY: `local` has the addresses and lengths of slices that are borrowed mutably until the end of this function.
    // Addresses of `remote` are of another process; the system refuses those that do not exist there.
    let copied = unsafe {
        libc::process_vm_readv(
            process,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    match usize::try_from(copied) {
        Ok(count) if count == expected => Ok(()),
        Ok(count) => Err(io::Error::other(format!(
            "{count} of {expected} bytes of its memory could be read"
        ))),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_until_the_mark_ends() {
        let mark = LendingMark::new().unwrap();
        let memory = PeerMemory::open(mark.offer()).unwrap();
        let values: Vec<u8> = (0..100_000).map(|value| value as u8).collect();
        let mut read = vec![0; values.len()];
        let address = values.as_ptr() as u64;
        memory.read(address, &mut read).unwrap();
        assert!(read == values);
        mark.end();
        let error = memory.read(address, &mut read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn wrong_offers_and_addresses_are_refused() {
        let mark = LendingMark::new().unwrap();
        let offer = mark.offer();
        let changed = |change: fn(&mut LendingOffer)| {
            let mut offer = offer.clone();
            change(&mut offer);
            PeerMemory::open(offer)
        };
        assert!(changed(|offer| offer.mark ^= 1).is_none());
        assert!(changed(|offer| offer.mark_address = 8).is_none());
        assert!(changed(|offer| offer.mark_address = u64::MAX - 3).is_none());
        assert!(changed(|offer| offer.process = 0).is_none());
        assert!(changed(|offer| offer.process = u32::MAX).is_none());
        let memory = PeerMemory::open(offer).unwrap();
        assert!(memory.read(16, &mut [0; 4]).is_err());
    }

    #[test]
    fn a_mark_is_used_again_with_other_contents() {
        let first = LendingMark::new().unwrap();
        let offer = first.offer();
        drop(first);
        let marks: Vec<LendingMark> = (0..8).map_while(|_| LendingMark::new()).collect();
        assert!(marks.iter().all(|mark| mark.offer() != offer));
        assert!(PeerMemory::open(offer).is_none());
    }
}
