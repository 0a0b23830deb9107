//! The messages between the ranks of a round.
//!
//! A request is a message of [`REQUEST_WORDS`] numbers; a push is followed by its gradient, and by the numbers of its samples if it
//! has any. An answer is a message of [`ANSWER_WORDS`] numbers; that to a pull is followed by the values of the slot.

use ronde_core::sparse::{SparseSize, SparseValues};
use ronde_core::{BatchCounts, Buffer, CollectiveError, DType, Group, GroupRank, Step, Tag, Work};
use ronde_protocol::served::{PushHeader, PushProblem, PushVerdict, ServedRound};

use super::slice::UpdateScale;

/// The tags of requests, of their contents, of answers, and of the values of a slot.
pub(super) const REQUEST: Tag = Tag(0x7073_0000);
pub(super) const GRADIENT: Tag = Tag(0x7073_0001);
pub(super) const SAMPLES: Tag = Tag(0x7073_0002);
pub(super) const ANSWER: Tag = Tag(0x7073_0003);
pub(super) const VALUES: Tag = Tag(0x7073_0004);
/// The tag of slots that move at the start of a round.
pub(super) const MOVED: Tag = Tag(0x7073_0005);
/// The first tag of the updates for copies; three follow each other for each slot.
const COPIES: u32 = 0x7074_0000;

pub(super) const REQUEST_WORDS: usize = 18;
pub(super) const ANSWER_WORDS: usize = 2;

/// The tags of the requests, gradients and samples for the copy of a slot.
pub(super) fn copy_tags(slot: u32) -> [Tag; 3] {
    [0, 1, 2].map(|part| Tag(COPIES + 3 * slot + part))
}

/// A pushed gradient without its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlotPush {
    pub(super) slot: u32,
    pub(super) push: PushHeader,
    pub(super) scale: UpdateScale,
    pub(super) skipped: u64,
    pub(super) loss_sum: f64,
    /// The number of sample numbers that follow.
    pub(super) ids: u64,
    /// The size of a gradient that is sent without its zeros; `None`: all of its values are sent.
    pub(super) sparse: Option<SparseSize>,
}

/// Stands for a gradient with all of its values.
const DENSE: u64 = u64::MAX;

fn size_word(size: Option<SparseSize>) -> u64 {
    size.map_or(DENSE, |size| {
        u64::from(size.runs) << 32 | u64::from(size.blocks)
    })
}

fn size_of_word(word: u64) -> Option<SparseSize> {
    (word != DENSE).then_some(SparseSize {
        runs: (word >> 32) as u32,
        blocks: word as u32,
    })
}

/// A request of a worker to a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ServerRequest {
    /// Which update is next?
    Lease,
    /// The version and the values of a slot.
    Pull(u32),
    /// A gradient follows.
    Push(SlotPush),
    /// The gradient of this tensor is not finite: the round ends.
    Diverged(u64),
    /// The worker sends no more requests.
    Leave,
}

impl ServerRequest {
    pub(super) fn encode(&self) -> [u64; REQUEST_WORDS] {
        let mut words = [0; REQUEST_WORDS];
        match self {
            Self::Lease => words[0] = 1,
            Self::Pull(slot) => words[..2].copy_from_slice(&[2, u64::from(*slot)]),
            Self::Push(push) => {
                let round = push.push.round;
                words = [
                    3,
                    push.slot.into(),
                    round.step.0,
                    round.start,
                    round.updates.into(),
                    round.slots.into(),
                    push.push.update.into(),
                    push.push.base,
                    push.push.worker.into(),
                    push.scale.counts.samples,
                    push.skipped,
                    push.scale.clip_factor.to_bits().into(),
                    push.scale.learning_rate.to_bits(),
                    push.loss_sum.to_bits(),
                    push.ids,
                    push.push.attempt,
                    size_word(push.sparse),
                    push.scale.counts.targets,
                ];
            }
            Self::Diverged(tensor) => words[..2].copy_from_slice(&[4, *tensor]),
            Self::Leave => words[0] = 5,
        }
        words
    }

    /// Reads a request; `None` if it is unknown.
    pub(super) fn decode(words: &[u64; REQUEST_WORDS]) -> Option<Self> {
        let small = |word: u64| u32::try_from(word).ok();
        Some(match words[0] {
            1 => Self::Lease,
            2 => Self::Pull(small(words[1])?),
            3 => Self::Push(SlotPush {
                slot: small(words[1])?,
                push: PushHeader {
                    round: ServedRound {
                        step: Step(words[2]),
                        start: words[3],
                        updates: small(words[4])?,
                        slots: small(words[5])?,
                    },
                    attempt: words[15],
                    update: small(words[6])?,
                    base: words[7],
                    worker: small(words[8])?,
                },
                scale: UpdateScale {
                    counts: BatchCounts {
                        samples: words[9],
                        targets: words[17],
                    },
                    clip_factor: f32::from_bits(small(words[11])?),
                    learning_rate: f64::from_bits(words[12]),
                },
                skipped: words[10],
                loss_sum: f64::from_bits(words[13]),
                ids: words[14],
                sparse: size_of_word(words[16]),
            }),
            4 => Self::Diverged(words[1]),
            5 => Self::Leave,
            _ => return None,
        })
    }
}

/// The answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerAnswer {
    /// Compute this update.
    Granted(u32),
    /// The round is complete.
    Complete,
    /// The version of the values that follow.
    Version(u64),
    /// The gradient counts, now or since an earlier push.
    Counted,
    /// The gradient is not finite.
    NotFinite,
    /// The gradient does not count: compute the update again.
    Refused,
}

impl ServerAnswer {
    /// Returns the answer to a push.
    pub(super) fn of(verdict: PushVerdict) -> Self {
        match verdict {
            PushVerdict::Apply { .. } | PushVerdict::Repeated => Self::Counted,
            PushVerdict::Refused(PushProblem::NotFinite) => Self::NotFinite,
            PushVerdict::Refused(_) => Self::Refused,
        }
    }

    pub(super) fn encode(self) -> [u64; ANSWER_WORDS] {
        match self {
            Self::Granted(update) => [1, update.into()],
            Self::Complete => [2, 0],
            Self::Version(version) => [3, version],
            Self::Counted => [4, 0],
            Self::NotFinite => [5, 0],
            Self::Refused => [6, 0],
        }
    }

    pub(super) fn decode(words: [u64; ANSWER_WORDS]) -> Option<Self> {
        Some(match words[0] {
            1 => Self::Granted(u32::try_from(words[1]).ok()?),
            2 => Self::Complete,
            3 => Self::Version(words[1]),
            4 => Self::Counted,
            5 => Self::NotFinite,
            6 => Self::Refused,
            _ => return None,
        })
    }
}

/// Starts sending numbers.
pub(crate) fn send_words(
    group: &dyn Group,
    to: GroupRank,
    tag: Tag,
    words: &[u64],
) -> Result<Box<dyn Work>, CollectiveError> {
    let words: Vec<i64> = words.iter().map(|word| *word as i64).collect();
    group.send(to, tag, Buffer::copy_of(&words))
}

/// Receives `count` numbers.
pub(crate) fn receive_words(
    group: &dyn Group,
    from: GroupRank,
    tag: Tag,
    count: usize,
) -> Result<Vec<u64>, CollectiveError> {
    let buffer = group.receive(from, tag, Buffer::host(DType::I64, count))?;
    let words = buffer.wait()?;
    let words = words.as_slice::<i64>().iter();
    Ok(words.map(|word| *word as u64).collect())
}

/// Receives `count` values.
pub(crate) fn receive_values(
    group: &dyn Group,
    from: GroupRank,
    tag: Tag,
    count: usize,
) -> Result<Buffer, CollectiveError> {
    group
        .receive(from, tag, Buffer::host(DType::F32, count))?
        .wait()
}

/// Starts sending a gradient, without its zeros if `sparse` has them.
pub(super) fn send_gradient(
    group: &dyn Group,
    to: GroupRank,
    tag: Tag,
    values: &[f32],
    sparse: Option<&SparseValues>,
) -> Result<Box<dyn Work>, CollectiveError> {
    let message = match sparse {
        Some(sparse) => {
            let mut bytes = Vec::new();
            sparse.encode(&mut bytes);
            Buffer::copy_of(&bytes)
        }
        None => Buffer::copy_of(values),
    };
    group.send(to, tag, message)
}

/// Receives a gradient of `len` values, `sparse` of them if it is sent without its zeros.
pub(super) fn receive_gradient(
    group: &dyn Group,
    from: GroupRank,
    tag: Tag,
    (len, sparse): (usize, Option<SparseSize>),
) -> Result<Buffer, CollectiveError> {
    let Some(size) = sparse else {
        return receive_values(group, from, tag, len);
    };
    let invalid = || CollectiveError::Invalid {
        operation: "receive a gradient".to_owned(),
        problem: format!("rank {from} has sent invalid blocks"),
    };
    // A gradient without its zeros is shorter; a larger size would only take memory.
    if size.bytes() > 4 * len {
        return Err(invalid());
    }
    let message = group.receive(from, tag, Buffer::host(DType::U8, size.bytes()))?;
    let message = message.wait()?;
    let sparse = SparseValues::decode(message.as_slice::<u8>(), len, size).ok_or_else(invalid)?;
    let mut values = Buffer::host(DType::F32, len);
    sparse.write(0, values.as_mut_slice());
    Ok(values)
}

/// Collects the numbers of all ranks, one rank after the other.
pub(crate) fn gather_words(group: &dyn Group, words: &[u64]) -> Result<Vec<u64>, CollectiveError> {
    use ronde_core::CollectivesExt;
    let words: Vec<i64> = words.iter().map(|word| *word as i64).collect();
    let all = group.all_gather(&words)?;
    Ok(all.into_iter().map(|word| word as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_wire() {
        let push = SlotPush {
            slot: 3,
            push: PushHeader {
                round: ServedRound {
                    step: Step(9),
                    start: u64::MAX,
                    updates: 70,
                    slots: 4,
                },
                attempt: 6,
                update: 69,
                base: 1 << 40,
                worker: 2,
            },
            scale: UpdateScale {
                counts: BatchCounts {
                    samples: 32,
                    targets: 70,
                },
                clip_factor: 0.25,
                learning_rate: 1e-3,
            },
            skipped: 1,
            loss_sum: -0.5,
            ids: 33,
            sparse: None,
        };
        let sparse = Some(SparseSize {
            runs: 3,
            blocks: u32::MAX,
        });
        for request in [
            ServerRequest::Lease,
            ServerRequest::Pull(7),
            ServerRequest::Push(push),
            ServerRequest::Push(SlotPush { sparse, ..push }),
            ServerRequest::Diverged(5),
            ServerRequest::Leave,
        ] {
            assert_eq!(ServerRequest::decode(&request.encode()), Some(request));
        }
        let mut words = ServerRequest::Push(push).encode();
        words[8] = u64::MAX;
        assert_eq!(ServerRequest::decode(&words), None);
        assert_eq!(ServerRequest::decode(&[0; REQUEST_WORDS]), None);
        for answer in [
            ServerAnswer::Granted(4),
            ServerAnswer::Complete,
            ServerAnswer::Version(u64::MAX),
            ServerAnswer::Counted,
            ServerAnswer::NotFinite,
            ServerAnswer::Refused,
        ] {
            assert_eq!(ServerAnswer::decode(answer.encode()), Some(answer));
        }
        assert_eq!(ServerAnswer::decode([0, 0]), None);
    }
}
