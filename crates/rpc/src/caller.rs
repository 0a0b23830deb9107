//! [`CallerLink`]: the caller's side of the calls to one peer, as a state machine without I/O and without a clock.
//!
//! A call is kept until its answer arrives. When the connection is lost and the peer still knows this caller, unanswered
//! calls are sent again, in their order; the peer executes those that it has not received before and repeats the other
//! answers ([`crate::callee::CalleeSession`]). When the peer does not know this caller, calls that were sent before fail,
//! because they may have been executed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::frame::{ACKNOWLEDGED_MAX, FailureCode, FrameBody, RpcFrameKind};
use crate::limits::RpcLimits;
use crate::values::CallValues;

/// Acknowledgements are sent at the latest with this many answers, or with answers of this many bytes.
const ACKNOWLEDGED_TOGETHER: usize = 32;
const ACKNOWLEDGED_BYTES: usize = 64 << 10;

/// The number of a call to one peer.
pub(crate) type CallNumber = u64;

/// The end of a call.
#[derive(Debug)]
pub(crate) enum CallEnd {
    /// The head and the values of the result.
    Answer(Vec<u8>, CallValues),
    Failure(FailureCode, String),
    DeadlinePassed,
    PeerLost(String),
    /// The peer and this node do not accept each other.
    Refused(String),
    /// This node is closing.
    Closing,
}

/// An action that a link requests.
#[derive(Debug)]
pub(crate) enum CallerAction<T> {
    /// Send a frame on the current connection.
    Transmit(Arc<FrameBody>),
    /// Report the end of a call to the owner of `ticket`.
    Finish(T, CallEnd),
}

/// Why a call cannot begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkFull {
    Calls(usize),
    Bytes(usize),
}

/// A call that begins.
pub(crate) struct NewCall<T> {
    /// [`RpcFrameKind::Call`] or [`RpcFrameKind::Send`].
    pub(crate) kind: RpcFrameKind,
    pub(crate) head: Vec<u8>,
    pub(crate) values: CallValues,
    pub(crate) deadline: Duration,
    pub(crate) ticket: T,
}

struct OpenCall<T> {
    body: Arc<FrameBody>,
    deadline: Duration,
    ticket: T,
    /// It was sent on any connection.
    was_sent: bool,
}

/// The calls to one peer. `T` identifies a call for its owner.
pub(crate) struct CallerLink<T> {
    calls: BTreeMap<CallNumber, OpenCall<T>>,
    deadlines: BTreeSet<(Duration, CallNumber)>,
    bytes: usize,
    next: CallNumber,
    is_connected: bool,
    /// Since when there has been no connection.
    lost_since: Option<(Duration, String)>,
    answered: Vec<CallNumber>,
    answered_bytes: usize,
}

impl<T> CallerLink<T> {
    pub(crate) fn new() -> Self {
        Self {
            calls: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            bytes: 0,
            next: 1,
            is_connected: false,
            lost_since: None,
            answered: Vec::new(),
            answered_bytes: 0,
        }
    }

    /// Returns the number of calls without an answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns whether an attempt to connect has failed since the last connection.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost_since.is_some()
    }

    /// Returns which bound refuses a call with `bytes` now.
    pub(crate) fn check_room(&self, bytes: usize, limits: &RpcLimits) -> Result<(), LinkFull> {
        if self.calls.len() >= limits.calls_in_flight_max {
            return Err(LinkFull::Calls(limits.calls_in_flight_max));
        }
        // One message may always be sent, even if it is longer than the bound.
        if self.bytes > 0 && self.bytes + bytes > limits.bytes_in_flight_max {
            return Err(LinkFull::Bytes(limits.bytes_in_flight_max));
        }
        Ok(())
    }

    /// Begins a call.
    pub(crate) fn start(
        &mut self,
        now: Duration,
        begun: NewCall<T>,
        actions: &mut Vec<CallerAction<T>>,
    ) -> CallNumber {
        let call = self.next;
        self.next += 1;
        if let Some((since, _)) = self.lost_since.as_mut().filter(|_| self.calls.is_empty()) {
            // The first call after a pause gets a full period of attempts to connect.
            *since = now;
        }
        let body = Arc::new(FrameBody {
            kind: begun.kind,
            call,
            head: begun.head,
            values: begun.values,
        });
        self.bytes += body.bytes();
        if self.is_connected {
            if self.answered.len() >= ACKNOWLEDGED_TOGETHER / 2 {
                self.acknowledge(actions);
            }
            actions.push(CallerAction::Transmit(Arc::clone(&body)));
        }
        self.deadlines.insert((begun.deadline, call));
        let open = OpenCall {
            body,
            deadline: begun.deadline,
            ticket: begun.ticket,
            was_sent: self.is_connected,
        };
        self.calls.insert(call, open);
        call
    }

    /// A connection was established; `is_resumed` if the peer still knows this caller.
    pub(crate) fn connected(&mut self, is_resumed: bool, actions: &mut Vec<CallerAction<T>>) {
        let cause = self.lost_since.take();
        let cause = cause.map_or_else(String::new, |(_, cause)| format!("{cause}; "));
        self.answered.clear();
        self.answered_bytes = 0;
        if !is_resumed {
            let sent = self.calls.iter().filter(|(_, call)| call.was_sent);
            let sent: Vec<CallNumber> = sent.map(|(&number, _)| number).collect();
            for number in sent {
                let cause = format!("{cause}it has restarted and does not know this call");
                self.finish(number, CallEnd::PeerLost(cause), actions);
            }
        }
        self.is_connected = true;
        // Answers and acknowledgements may have been lost with the connection.
        let waiting = FrameBody::numbers(RpcFrameKind::Waiting, &self.numbers());
        actions.push(CallerAction::Transmit(Arc::new(waiting)));
        for call in self.calls.values_mut() {
            call.was_sent = true;
            actions.push(CallerAction::Transmit(Arc::clone(&call.body)));
        }
    }

    /// The connection was lost, or an attempt to connect failed.
    pub(crate) fn disconnected(&mut self, now: Duration, cause: String) {
        self.is_connected = false;
        self.lost_since.get_or_insert((now, cause));
    }

    /// The peer refuses this node, or this node the peer: all calls fail.
    pub(crate) fn refused(
        &mut self,
        now: Duration,
        cause: &str,
        actions: &mut Vec<CallerAction<T>>,
    ) {
        self.disconnected(now, cause.to_owned());
        for number in self.numbers() {
            self.finish(number, CallEnd::Refused(cause.to_owned()), actions);
        }
    }

    /// This node is closing: all calls fail.
    pub(crate) fn close(&mut self, actions: &mut Vec<CallerAction<T>>) {
        for number in self.numbers() {
            self.finish(number, CallEnd::Closing, actions);
        }
    }

    /// An answer or a failure was received. Frames for calls that have ended are ignored.
    pub(crate) fn answered(&mut self, frame: FrameBody, actions: &mut Vec<CallerAction<T>>) {
        let end = match frame.kind {
            RpcFrameKind::Failure => match frame.failure_parts() {
                Some((code, text)) => CallEnd::Failure(code, text),
                None => CallEnd::Failure(
                    FailureCode::FunctionFailed,
                    "it sent an invalid failure".to_owned(),
                ),
            },
            _ => {
                self.answered_bytes += frame.bytes();
                CallEnd::Answer(frame.head, frame.values)
            }
        };
        self.answered.push(frame.call);
        self.finish(frame.call, end, actions);
        if self.answered.len() >= ACKNOWLEDGED_TOGETHER || self.answered_bytes >= ACKNOWLEDGED_BYTES
        {
            self.acknowledge(actions);
        }
    }

    /// The owner of a call no longer waits for it. Returns its ticket unless it has ended.
    pub(crate) fn cancel(
        &mut self,
        number: CallNumber,
        actions: &mut Vec<CallerAction<T>>,
    ) -> Option<T> {
        let call = self.remove(number)?;
        if self.is_connected && call.was_sent {
            actions.push(CallerAction::Transmit(Arc::new(FrameBody::cancel(number))));
        }
        Some(call.ticket)
    }

    /// Ends calls whose deadline has passed, and all calls when the peer was lost for too long; sends pending
    /// acknowledgements.
    pub(crate) fn tick(
        &mut self,
        now: Duration,
        reconnect: Duration,
        actions: &mut Vec<CallerAction<T>>,
    ) {
        while let Some(&(deadline, number)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            if let Some(ticket) = self.cancel(number, actions) {
                actions.push(CallerAction::Finish(ticket, CallEnd::DeadlinePassed));
            }
        }
        if let Some((since, cause)) = &self.lost_since
            && now.saturating_sub(*since) >= reconnect
            && !self.calls.is_empty()
        {
            let cause = cause.clone();
            for number in self.numbers() {
                self.finish(number, CallEnd::PeerLost(cause.clone()), actions);
            }
        }
        if self.is_connected && !self.answered.is_empty() {
            self.acknowledge(actions);
        }
    }

    fn numbers(&self) -> Vec<CallNumber> {
        self.calls.keys().copied().collect()
    }

    fn acknowledge(&mut self, actions: &mut Vec<CallerAction<T>>) {
        for calls in self.answered.chunks(ACKNOWLEDGED_MAX) {
            let frame = FrameBody::numbers(RpcFrameKind::Acknowledge, calls);
            actions.push(CallerAction::Transmit(Arc::new(frame)));
        }
        self.answered.clear();
        self.answered_bytes = 0;
    }

    fn remove(&mut self, number: CallNumber) -> Option<OpenCall<T>> {
        let call = self.calls.remove(&number)?;
        self.deadlines.remove(&(call.deadline, number));
        self.bytes -= call.body.bytes();
        Some(call)
    }

    fn finish(&mut self, number: CallNumber, end: CallEnd, actions: &mut Vec<CallerAction<T>>) {
        if let Some(call) = self.remove(number) {
            actions.push(CallerAction::Finish(call.ticket, end));
        }
    }
}

#[cfg(test)]
mod tests;
