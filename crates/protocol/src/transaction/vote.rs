//! [`Vote`]: a rank's vote on a step, and its encoding.
//!
//! Little-endian: version, number of reports, number of ids, lengths of the sums and the note, part of the digest (u32 each), step,
//! has-digest, digest, newest generation, requests (u64 each), busy_s (f64), reports (shard u32, samples u64, targets u64, skipped
//! u64, loss_sum f64), ids (u64 each), the sums, the note.

use ronde_core::byte_reader::{ByteProblem, ByteReader};
use ronde_core::{Generation, Shard, Step};

use crate::transaction::ShardReport;
use crate::transaction::VoteProblem;
use crate::transaction::requests::VoteRequests;

const VERSION: u32 = 10;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Vote {
    pub(super) step: Step,
    pub(super) digest: Option<u64>,
    /// The part of the model that the digest is of.
    pub(super) digest_of: u32,
    /// The newest generation that the rank knows.
    pub(super) newest: Generation,
    pub(super) reports: Vec<ShardReport>,
    pub(super) sample_ids: Vec<u64>,
    pub(super) requests: VoteRequests,
    /// The seconds that the rank was busy with its shards.
    pub(super) busy_s: f64,
    /// Bytes that all ranks need to apply the step; see [`super::Session::attach_sums`].
    pub(super) sums: Vec<u8>,
    /// Bytes for all ranks; see [`super::Session::attach`].
    pub(super) note: Vec<u8>,
}

impl Vote {
    pub(super) fn encode(&self) -> Vec<u8> {
        let ids = 8 * self.sample_ids.len();
        let attached = self.sums.len() + self.note.len();
        let mut bytes = Vec::with_capacity(72 + 36 * self.reports.len() + ids + attached);
        for count in [
            VERSION,
            self.reports.len() as u32,
            self.sample_ids.len() as u32,
            self.sums.len() as u32,
            self.note.len() as u32,
            self.digest_of,
        ] {
            bytes.extend(count.to_le_bytes());
        }
        for word in [
            self.step.0,
            u64::from(self.digest.is_some()),
            self.digest.unwrap_or_default(),
            self.newest.0,
            self.requests.to_bits(),
            self.busy_s.to_bits(),
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for report in &self.reports {
            bytes.extend(report.shard.0.to_le_bytes());
            bytes.extend(report.samples.to_le_bytes());
            bytes.extend(report.targets.to_le_bytes());
            bytes.extend(report.skipped.to_le_bytes());
            bytes.extend(report.loss_sum.to_le_bytes());
        }
        for id in &self.sample_ids {
            bytes.extend(id.to_le_bytes());
        }
        bytes.extend(&self.sums);
        bytes.extend(&self.note);
        bytes
    }

    fn decode(reader: &mut ByteReader<'_>) -> Result<Self, VoteProblem> {
        let version = reader.u32()?;
        if version != VERSION {
            return Err(VoteProblem::Version {
                theirs: version,
                expected: VERSION,
            });
        }
        let (reports, ids) = (reader.u32()?, reader.u32()?);
        let (sums, note) = (reader.u32()?, reader.u32()?);
        let digest_of = reader.u32()?;
        let step = Step(reader.u64()?);
        let digest = match (reader.u64()?, reader.u64()?) {
            (0, 0) => None,
            (1, digest) => Some(digest),
            (flag, _) => return Err(VoteProblem::DigestFlag(flag)),
        };
        let newest = Generation(reader.u64()?);
        let requests = VoteRequests::from_bits(reader.u64()?)?;
        let busy_s = f64::from_bits(reader.u64()?);
        // Collecting into a `Result` reserves no memory up front, so a wrong number cannot cause a large allocation.
        let reports = (0..reports)
            .map(|_| {
                Ok(ShardReport {
                    shard: Shard(reader.u32()?),
                    samples: reader.u64()?,
                    targets: reader.u64()?,
                    skipped: reader.u64()?,
                    loss_sum: f64::from_bits(reader.u64()?),
                })
            })
            .collect::<Result<_, ByteProblem>>()?;
        let sample_ids = (0..ids)
            .map(|_| reader.u64())
            .collect::<Result<_, ByteProblem>>()?;
        let sums = reader.bytes(sums as usize)?.to_vec();
        let note = reader.bytes(note as usize)?.to_vec();
        Ok(Self {
            step,
            digest,
            digest_of,
            newest,
            reports,
            sample_ids,
            requests,
            busy_s,
            sums,
            note,
        })
    }
}

/// Decodes the concatenated votes of all ranks. An error has the rank of the invalid vote and the problem.
pub(super) fn decode_all(bytes: &[u8], ranks: usize) -> Result<Vec<Vote>, (usize, VoteProblem)> {
    let mut reader = ByteReader::new(bytes);
    let votes = (0..ranks)
        .map(|rank| Vote::decode(&mut reader).map_err(|problem| (rank, problem)))
        .collect::<Result<Vec<_>, _>>()?;
    reader
        .end()
        .map_err(|problem| (ranks.saturating_sub(1), problem.into()))?;
    Ok(votes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vote() -> Vote {
        Vote {
            step: Step(7),
            digest: Some(9),
            digest_of: 0,
            newest: Generation(2),
            reports: vec![ShardReport {
                shard: Shard(1),
                samples: 2,
                targets: 5,
                skipped: 1,
                loss_sum: 0.5,
            }],
            sample_ids: vec![4, 5],
            requests: VoteRequests {
                save: true,
                stop: false,
                evaluate: false,
                complete: true,
                leaves: true,
                heals: true,
            },
            busy_s: 0.25,
            sums: vec![9, 8],
            note: vec![1, 2, 3],
        }
    }

    #[test]
    fn votes_survive_encoding_and_decoding() {
        let other = Vote {
            digest: None,
            digest_of: 3,
            reports: vec![],
            sample_ids: vec![],
            requests: VoteRequests::default(),
            busy_s: 0.0,
            sums: vec![],
            note: vec![],
            ..vote()
        };
        let bytes = [vote().encode(), other.encode()].concat();
        assert_eq!(decode_all(&bytes, 2).unwrap(), [vote(), other]);
        assert_eq!(decode_all(&bytes[..bytes.len() - 1], 2).unwrap_err().0, 1);
        assert!(matches!(
            decode_all(&bytes, 1),
            Err((0, VoteProblem::Bytes(ByteProblem::TooMany(_))))
        ));
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_all(&bytes, 3);
        }

        #[test]
        fn a_changed_byte_is_an_error_or_another_vote(at in 0_usize..117, value in any::<u8>()) {
            let mut bytes = vote().encode();
            let at = at % bytes.len();
            prop_assume!(bytes[at] != value);
            bytes[at] = value;
            prop_assert!(decode_all(&bytes, 1).map_or(true, |votes| votes[0].encode() != vote().encode()));
        }
    }
}
