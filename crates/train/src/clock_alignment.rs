//! [`ClockAlignment`]: the offset of this host's monotonic clock from that of rank 0.
//!
//! Processes of one host read the same clock. The first rank of every other host exchanges a few messages with rank 0 and
//! uses the exchange with the shortest round trip: its offset is wrong by at most half of that round trip (RFC 5905,
//! section 8).

use ronde_core::{Buffer, CollectiveError, CollectivesExt, Group, GroupRank, Tag};

/// The tag of the messages.
const TAG: Tag = Tag(0x636c_6f63);
/// The number of exchanges of each host with rank 0.
const EXCHANGES: usize = 8;

/// The offset of a clock from the clock of rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClockAlignment {
    /// Nanoseconds to add to this host's clock.
    pub(crate) offset_ns: i64,
    /// The largest error of the offset in nanoseconds; 0 on the host of rank 0.
    pub(crate) error_ns: u64,
}

impl ClockAlignment {
    /// Measures the offset. All members call it together. Cost: one all-gather, and if there are several hosts a second
    /// one and [`EXCHANGES`] round trips per host, one host after the other.
    ///
    /// # Errors
    /// A member was lost.
    pub(crate) fn measure(group: &dyn Group) -> Result<Self, CollectiveError> {
        Self::measure_on(group, host_identity(), &ronde_clock::host_ns)
    }

    /// Measures the offset of a clock. `host` is 0 if it is not known.
    fn measure_on(
        group: &dyn Group,
        host: i64,
        clock: &dyn Fn() -> u64,
    ) -> Result<Self, CollectiveError> {
        let me = group.rank().index();
        let hosts = group.all_gather(&[host])?;
        let first_of = |rank: usize| {
            let same = |other: &i64| hosts[rank] != 0 && *other == hosts[rank];
            hosts.iter().position(same).unwrap_or(rank)
        };
        let firsts = (1..hosts.len()).filter(|rank| first_of(*rank) == *rank);
        let firsts: Vec<usize> = firsts.collect();
        if firsts.is_empty() {
            return Ok(Self::default());
        }
        let mut mine = Self::default();
        for first in firsts {
            if me == 0 {
                answer(group, GroupRank(first as u32), clock)?;
            } else if me == first {
                mine = exchange(group, clock)?;
            }
        }
        let all = group.all_gather(&[mine.offset_ns, mine.error_ns.cast_signed()])?;
        let first = first_of(me);
        Ok(Self {
            offset_ns: all[2 * first],
            error_ns: all[2 * first + 1].cast_unsigned(),
        })
    }

    /// Returns a time of this host's clock, in nanoseconds, as seconds of rank 0's clock.
    pub(crate) fn seconds(&self, host_ns: u64) -> f64 {
        (host_ns.cast_signed().saturating_add(self.offset_ns)) as f64 / 1e9
    }
}

/// Answers the exchanges of a host on rank 0.
fn answer(
    group: &dyn Group,
    first: GroupRank,
    clock: &dyn Fn() -> u64,
) -> Result<(), CollectiveError> {
    for _ in 0..EXCHANGES {
        group
            .receive(first, TAG, Buffer::copy_of(&[0_i64]))?
            .wait()?;
        let received = clock().cast_signed();
        let answer = Buffer::copy_of(&[received, clock().cast_signed()]);
        group.send(first, TAG, answer)?.wait()?;
    }
    Ok(())
}

/// Runs the exchanges of a host with rank 0.
fn exchange(group: &dyn Group, clock: &dyn Fn() -> u64) -> Result<ClockAlignment, CollectiveError> {
    let mut best: Option<(i64, ClockAlignment)> = None;
    for _ in 0..EXCHANGES {
        let answer = group.receive(GroupRank(0), TAG, Buffer::copy_of(&[0_i64; 2]))?;
        let sent = clock().cast_signed();
        group
            .send(GroupRank(0), TAG, Buffer::copy_of(&[sent]))?
            .wait()?;
        let answer = answer.wait()?;
        let received = clock().cast_signed();
        let times: &[i64] = answer.as_slice();
        let (there, back) = (times[0], times[1]);
        let round_trip = (received - sent) - (back - there);
        let alignment = ClockAlignment {
            offset_ns: there.midpoint(back) - sent.midpoint(received),
            error_ns: (round_trip.max(0) / 2 + 1).cast_unsigned(),
        };
        if best.is_none_or(|(shortest, _)| round_trip < shortest) {
            best = Some((round_trip, alignment));
        }
    }
    Ok(best.map_or_else(ClockAlignment::default, |(_, alignment)| alignment))
}

/// Returns a number that processes have in common if they read the same [`ronde_clock::host_ns`]; 0 if the system does not tell.
fn host_identity() -> i64 {
    let mut identity = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if identity.is_empty() {
        return 0;
    }
    // A container may have a time namespace.
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    identity.extend(namespace.as_os_str().as_encoded_bytes());
    let hash = blake3::hash(&identity);
    let first = hash.as_bytes().first_chunk::<8>();
    first.map_or(0, |first| i64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ronde_comm::testing::spawn_ranks;
    use ronde_core::Collectives as _;

    use super::*;

    #[test]
    fn offsets_between_hosts_are_found_within_their_error() {
        // Hosts by rank, and how far the clock of each is ahead.
        let hosts = [7_i64, 7, 9, 9, 0];
        let ahead = [0_i64, 0, 5_000_000_000, 5_000_000_000, -3_000_000_000];
        let measured = spawn_ranks(hosts.len(), Duration::from_secs(60), move |group| {
            let rank = group.rank().index();
            let base = 1_000_000_000_000_u64;
            let clock = || (ronde_clock::host_ns() + base).saturating_add_signed(ahead[rank]);
            let alignment = ClockAlignment::measure_on(&group, hosts[rank], &clock)?;
            Ok::<_, CollectiveError>(alignment)
        });
        for (rank, alignment) in measured.iter().enumerate() {
            let wrong = (alignment.offset_ns + ahead[rank]).unsigned_abs();
            assert!(wrong <= alignment.error_ns, "rank {rank}: {alignment:?}");
            assert_eq!(alignment.error_ns == 0, rank < 2, "rank {rank}");
        }
        assert_eq!(measured[2], measured[3]);
    }

    #[test]
    fn seconds_are_those_of_rank_0() {
        let alignment = ClockAlignment {
            offset_ns: -500_000_000,
            error_ns: 1,
        };
        assert_eq!(alignment.seconds(2_000_000_000), 1.5);
    }
}
