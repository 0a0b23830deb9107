//! The messages between two ranks of a round.
//!
//! A request is a message of [`REQUEST_WORDS`] numbers; one for an exchange is followed by the weights. An answer is a message of
//! [`ANSWER_WORDS`] numbers; one with a mean is followed by it.

use ronde_core::Tag;
use ronde_protocol::gossip::WorkerProgress;

/// The tags of requests, of the weights after them, of answers, and of the mean after them.
pub(super) const REQUEST: Tag = Tag(0x6773_0000);
pub(super) const WEIGHTS: Tag = Tag(0x6773_0001);
pub(super) const ANSWER: Tag = Tag(0x6773_0002);
pub(super) const MEAN: Tag = Tag(0x6773_0003);
/// The tag of replicas that are copied at the start of a round.
pub(super) const COPIED: Tag = Tag(0x6773_0004);

pub(super) const REQUEST_WORDS: usize = 4;
pub(super) const ANSWER_WORDS: usize = 4;

/// A request of a rank to another one, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerRequest {
    /// Which update may the sender compute?
    Ask(u64, WorkerProgress),
    /// The weights of the sender follow.
    Exchange(u64, WorkerProgress),
    /// The sender has no more requests.
    Leave,
}

impl PeerRequest {
    pub(super) fn encode(self) -> [u64; REQUEST_WORDS] {
        match self {
            Self::Ask(number, progress) => [1, number, progress.left, progress.pace_ms],
            Self::Exchange(number, progress) => [2, number, progress.left, progress.pace_ms],
            Self::Leave => [3, 0, 0, 0],
        }
    }

    /// Reads a request; `None` if the numbers are not valid.
    pub(super) fn decode(words: [u64; REQUEST_WORDS]) -> Option<Self> {
        let [kind, number, left, pace_ms] = words;
        let progress = WorkerProgress { left, pace_ms };
        Some(match kind {
            1 => Self::Ask(number, progress),
            2 => Self::Exchange(number, progress),
            3 => Self::Leave,
            _ => return None,
        })
    }
}

/// The answer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerAnswer {
    /// The update that the other rank computes; `None`: nothing is left.
    Granted(Option<u32>),
    /// The exchange had an effect: the mean follows.
    Averaged,
    /// The exchange had no effect.
    Missed,
}

impl PeerAnswer {
    pub(super) fn encode(self, progress: WorkerProgress) -> [u64; ANSWER_WORDS] {
        let (kind, value) = match self {
            Self::Granted(None) => (1, 0),
            Self::Granted(Some(update)) => (2, update.into()),
            Self::Averaged => (3, 0),
            Self::Missed => (4, 0),
        };
        [kind, value, progress.left, progress.pace_ms]
    }

    /// Reads an answer and the progress of its sender; `None` if the numbers are not valid.
    pub(super) fn decode(words: [u64; ANSWER_WORDS]) -> Option<(Self, WorkerProgress)> {
        let [kind, value, left, pace_ms] = words;
        let answer = match kind {
            1 => Self::Granted(None),
            2 => Self::Granted(Some(u32::try_from(value).ok()?)),
            3 => Self::Averaged,
            4 => Self::Missed,
            _ => return None,
        };
        Some((answer, WorkerProgress { left, pace_ms }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_wire() {
        let progress = WorkerProgress {
            left: 7,
            pace_ms: u64::MAX,
        };
        for request in [
            PeerRequest::Ask(3, progress),
            PeerRequest::Exchange(u64::MAX, progress),
            PeerRequest::Leave,
        ] {
            assert_eq!(PeerRequest::decode(request.encode()), Some(request));
        }
        assert_eq!(PeerRequest::decode([0; REQUEST_WORDS]), None);
        for answer in [
            PeerAnswer::Granted(None),
            PeerAnswer::Granted(Some(u32::MAX)),
            PeerAnswer::Averaged,
            PeerAnswer::Missed,
        ] {
            let decoded = PeerAnswer::decode(answer.encode(progress));
            assert_eq!(decoded, Some((answer, progress)));
        }
        assert_eq!(PeerAnswer::decode([0; ANSWER_WORDS]), None);
        assert_eq!(PeerAnswer::decode([2, u64::MAX, 0, 0]), None);
    }
}
