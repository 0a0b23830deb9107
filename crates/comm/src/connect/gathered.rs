//! [`GatheredStreams`]: the streams to other members as their connections are made or resumed, until all are there.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ronde_core::CollectiveError;
use ronde_wire::WireStream;

use super::{ConnectionOutcome, KeptStream, failed, unreachable};
use crate::config::JoinCancellation;
use crate::hello::JoinHello;
use crate::transport::PeerStream;

/// How long other members are still answered after one was refused, so that they learn of it.
const GRACE: Duration = Duration::from_secs(2);
/// Refusals reported in full; the rest are only counted.
const REFUSALS_MAX: usize = 16;
/// Interval between checks whether joining was cancelled.
const GIVE_UP_PAUSE: Duration = Duration::from_millis(10);

/// Returns the streams that the next attempt can continue after one has failed: those over which the hellos were exchanged,
/// and those over which they are under way, unless the deadline has passed, because the next attempt should not wait for the
/// same again.
pub(super) fn kept_after(
    error: &CollectiveError,
    unfinished: Vec<(usize, KeptStream)>,
    complete: Vec<Option<PeerStream>>,
) -> Vec<(usize, KeptStream)> {
    let is_late = matches!(error, CollectiveError::Unreachable { .. });
    let unfinished = unfinished.into_iter().filter(|_| !is_late);
    let complete = complete.into_iter().enumerate();
    let complete = complete.filter_map(|(peer, stream)| Some((peer, KeptStream::idle(stream?))));
    unfinished.chain(complete).collect()
}

/// The connections that were made so far.
pub(super) struct GatheredStreams<'a> {
    mine: &'a JoinHello,
    peers: &'a [SocketAddr],
    /// By group rank and number of the connection.
    made: Vec<Option<WireStream>>,
    /// By group rank.
    resumed: Vec<Option<PeerStream>>,
    pub(super) refused: Vec<String>,
    refusals: usize,
    failure: Option<CollectiveError>,
}

impl<'a> GatheredStreams<'a> {
    pub(super) fn new(mine: &'a JoinHello, peers: &'a [SocketAddr]) -> Self {
        let connections = peers.len() * mine.connections as usize;
        Self {
            mine,
            peers,
            made: (0..connections).map(|_| None).collect(),
            resumed: peers.iter().map(|_| None).collect(),
            refused: Vec::new(),
            refusals: 0,
            failure: None,
        }
    }

    /// Collects the connections; after a failure it still answers the other members for a while.
    pub(super) fn gather(
        &mut self,
        meetings: &mpsc::Receiver<ConnectionOutcome>,
        mut end: Instant,
        give_up: Option<&JoinCancellation>,
        dial_peer: &dyn Fn(usize),
    ) -> Result<(), CollectiveError> {
        let (mine, each) = (self.mine, self.mine.connections as usize);
        let mut heard = each;
        while heard < self.made.len() {
            if give_up.is_some_and(JoinCancellation::is_requested) {
                return Err(failed(
                    format!("cannot join generation {}", mine.generation),
                    &"cancelled because a newer generation exists",
                ));
            }
            let left = ronde_clock::left(end);
            match meetings.recv_timeout(left.min(GIVE_UP_PAUSE)) {
                Err(RecvTimeoutError::Timeout) if left > GIVE_UP_PAUSE => {}
                Ok(ConnectionOutcome::Member(peer, connection, wire)) => {
                    let earlier = self.made[peer * each + connection].replace(wire);
                    self.check_once(peer, earlier.is_none() && self.resumed[peer].is_none());
                    heard += 1;
                }
                Ok(ConnectionOutcome::Resumed(streams)) => {
                    heard += each * streams.len();
                    for (peer, stream) in streams {
                        let of_peer = &self.made[peer * each..][..each];
                        let is_first = of_peer.iter().all(Option::is_none);
                        self.check_once(peer, is_first);
                        self.resumed[peer] = Some(stream);
                    }
                }
                // A higher rank has lost it too, and dials this one.
                Ok(ConnectionOutcome::Lost(peer)) if peer > mine.rank as usize => {}
                Ok(ConnectionOutcome::Lost(peer)) => dial_peer(peer),
                Ok(ConnectionOutcome::Refused(refusal)) => {
                    self.refusals += 1;
                    if self.refused.len() < REFUSALS_MAX {
                        self.refused.push(refusal);
                    }
                }
                Ok(ConnectionOutcome::Failed(error)) => {
                    end = end.min(ronde_clock::deadline(GRACE));
                    self.failure.get_or_insert(error);
                    heard += 1;
                }
                Err(_) => return Err(self.failure.take().unwrap_or_else(|| self.late())),
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn check_once(&mut self, peer: usize, is_first: bool) {
        if !is_first {
            let what = format!("cannot join with group rank {peer}");
            let twice = failed(what, &"it connected twice");
            self.failure.get_or_insert(twice);
        }
    }

    /// Returns the error when the deadline has passed.
    fn late(&self) -> CollectiveError {
        let each = self.mine.connections as usize;
        let missing = (0..self.peers.len())
            .filter(|&peer| peer != self.mine.rank as usize && self.resumed[peer].is_none())
            .filter(|&peer| self.made[peer * each..][..each].iter().any(Option::is_none));
        let first = missing.clone().next().unwrap_or_default();
        let missing: Vec<String> = missing
            .map(|peer| format!("{peer} ({})", self.peers[peer]))
            .collect();
        let what = format!("cannot connect to group ranks {}", missing.join(", "));
        let mut cause = "the deadline has passed".to_owned();
        if self.refusals > 0 {
            cause += &format!("; {} refused: {}", self.refusals, self.refused.join("; "));
        }
        unreachable(first, what, &cause)
    }

    /// Returns the streams whose connections are complete.
    pub(super) fn into_streams(self) -> Vec<Option<PeerStream>> {
        let each = self.mine.connections as usize;
        let mut made = self.made.into_iter();
        let streams = self.resumed.into_iter().map(|resumed| {
            let of_peer: Vec<_> = made.by_ref().take(each).collect();
            let made: Option<Vec<_>> = of_peer.into_iter().collect();
            resumed.or_else(|| made.map(PeerStream::new))
        });
        streams.collect()
    }
}
