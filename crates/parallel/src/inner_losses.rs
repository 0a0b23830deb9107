//! [`InnerLosses`]: the losses of the inner steps of a round, which travel with the votes.

use std::collections::BTreeMap;

/// The bytes before the losses of a replica: its number and the number of losses.
const HEADER: usize = 8;
/// The bytes of a loss: the sum over counted targets, and their number.
const ENTRY: usize = 16;

/// The losses of some replicas in one round: for each inner step, the sum over its counted targets and their number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InnerLosses {
    replicas: BTreeMap<u32, Vec<(f64, u64)>>,
    /// The first tensor whose gradient was not finite.
    diverged: Option<u64>,
}

/// The number instead of that of a replica, before the number of a tensor whose gradient was not finite.
const DIVERGED: u32 = u32::MAX;

impl InnerLosses {
    /// Begins the losses of a replica again.
    pub(crate) fn begin(&mut self, replica: u32) {
        self.replicas.insert(replica, Vec::new());
    }

    /// Adds the loss of the next inner step of a replica.
    pub(crate) fn add(&mut self, replica: u32, loss_sum: f64, targets: u64) {
        let of_replica = self.replicas.entry(replica).or_default();
        of_replica.push((loss_sum, targets));
    }

    /// Adds to the loss of an inner step of a replica, numbered from 0; earlier ones without a loss have no targets.
    pub(crate) fn add_to(&mut self, replica: u32, step: usize, loss_sum: f64, targets: u64) {
        let of_replica = self.replicas.entry(replica).or_default();
        if of_replica.len() <= step {
            of_replica.resize(step + 1, (0.0, 0));
        }
        of_replica[step].0 += loss_sum;
        of_replica[step].1 += targets;
    }

    /// Adds the number of a tensor whose gradient was not finite.
    pub(crate) fn diverge(&mut self, tensor: u64) {
        self.diverged = Some(self.diverged.map_or(tensor, |other| other.min(tensor)));
    }

    /// Returns the number of the first tensor whose gradient was not finite.
    #[must_use]
    pub fn diverged(&self) -> Option<u64> {
        self.diverged
    }

    /// Returns the bytes for a vote. Length: 8 bytes for each replica and 16 for each of its inner steps, and 24 if a gradient was not
    /// finite.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let diverged = self.diverged.map(|tensor| vec![(0.0, tensor)]);
        let diverged = diverged.iter().map(|entries| (&DIVERGED, entries));
        let mut bytes = Vec::new();
        for (replica, losses) in self.replicas.iter().chain(diverged) {
            bytes.extend_from_slice(&replica.to_le_bytes());
            bytes.extend_from_slice(&(losses.len() as u32).to_le_bytes());
            for (loss_sum, targets) in losses {
                bytes.extend_from_slice(&loss_sum.to_le_bytes());
                bytes.extend_from_slice(&targets.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads the votes of all ranks; `None` if one is malformed.
    #[must_use]
    pub fn decode<'a>(votes: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut all = Self::default();
        for mut bytes in votes {
            while !bytes.is_empty() {
                let (header, rest) = bytes.split_at_checked(HEADER)?;
                let replica = u32::from_le_bytes(header[..4].try_into().ok()?);
                let count = u32::from_le_bytes(header[4..].try_into().ok()?) as usize;
                let (entries, rest) = rest.split_at_checked(count.checked_mul(ENTRY)?)?;
                for entry in entries.chunks_exact(ENTRY) {
                    let loss_sum = f64::from_le_bytes(entry[..8].try_into().ok()?);
                    let targets = u64::from_le_bytes(entry[8..].try_into().ok()?);
                    match replica {
                        DIVERGED => all.diverge(targets),
                        _ => all.add(replica, loss_sum, targets),
                    }
                }
                bytes = rest;
            }
        }
        Some(all)
    }

    /// Returns the mean loss of each inner step over the counted targets of all replicas, added in their order; NaN for a step without
    /// any.
    #[must_use]
    pub fn means(&self) -> Vec<f64> {
        let steps = self.replicas.values().map(Vec::len).max().unwrap_or(0);
        let mean = |step: usize| {
            let each = self.replicas.values().filter_map(|losses| losses.get(step));
            let (sum, targets) = each.fold((0.0, 0), |(sum, targets), (loss_sum, count)| {
                (sum + loss_sum, targets + count)
            });
            sum / targets as f64
        };
        (0..steps).map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_all_ranks_are_read_and_averaged_over_samples() {
        let (mut first, mut second) = (InnerLosses::default(), InnerLosses::default());
        first.begin(0);
        first.add(0, 8.0, 4);
        first.add(0, 2.0, 4);
        second.add(1, 4.0, 4);
        second.add(1, 9.0, 1);
        second.add(2, 0.0, 0);
        let votes = [first.encode(), second.encode(), Vec::new()];
        let all = InnerLosses::decode(votes.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(all.means(), [1.5, 2.2]);
        assert_eq!(votes[0].len(), 8 + 2 * 16);
        let again = InnerLosses::decode(votes.iter().rev().map(Vec::as_slice));
        assert_eq!(again, Some(all), "the order of ranks does not matter");
        let is_diverged = |votes: [&[u8]; 2]| InnerLosses::decode(votes).unwrap().diverged();
        assert_eq!(is_diverged([&votes[0], &votes[1]]), None);
        first.diverge(7);
        second.diverge(3);
        let diverged = [first.encode(), second.encode()];
        assert_eq!(is_diverged([&diverged[0], &diverged[1]]), Some(3));
    }

    #[test]
    fn malformed_votes_are_refused() {
        let mut one = InnerLosses::default();
        one.add(3, 1.0, 2);
        let bytes = one.encode();
        for len in 1..bytes.len() {
            assert_eq!(InnerLosses::decode([&bytes[..len]]), None, "{len} bytes");
        }
        let mut many = bytes;
        many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(InnerLosses::decode([many.as_slice()]), None);
        assert!(InnerLosses::default().means().is_empty());
    }
}
