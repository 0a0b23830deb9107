//! Calls of this node to others: [`RpcNode::call`], [`RpcNode::start`], [`RpcNode::send`], and [`PendingCall`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caller::{CallEnd, CallNumber, LinkFull, NewCall};
use crate::error::RpcError;
use crate::frame::{CallHead, FailureCode, HEADER_BYTES, RpcFrameKind, check_size};
use crate::function::RemoteFunction;
use crate::node::RpcNode;
use crate::node::{CallSlot, NodeState};
use crate::peers::CallTarget;
use crate::values::CallValues;

/// The longest limit of a call.
const LIMIT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a waiting thread yields before it sleeps: to wake it would take about as long as a short call.
const SPIN: Duration = Duration::from_micros(50);

/// The reaction of a call when the calls to its peer have reached a bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoomPolicy {
    Wait,
    Refuse,
}

/// A call that was begun: its location and name.
struct BegunCall {
    peer: usize,
    peer_name: String,
    number: CallNumber,
    deadline: Duration,
}

impl RpcNode {
    /// Calls a function and waits for its result. If the calls to the peer have reached a bound, waits for room first.
    /// All waits together end after `limit`.
    ///
    /// Cost: one message to the peer and one back; the values are copied into and out of the socket only,
    /// or once between two processes of one host.
    ///
    /// # Errors
    /// See [`RpcError`] for each cause, and [`RpcNode`] for the guarantees.
    pub fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        target: CallTarget<'_>,
        function: &RemoteFunction<A, R>,
        arguments: &A,
        values: impl Into<CallValues>,
        limit: Duration,
    ) -> Result<(R, CallValues), RpcError> {
        let values = values.into();
        self.pending(target, function, arguments, values, limit, RoomPolicy::Wait)?
            .wait()
    }

    /// Begins a call and returns without waiting for its result.
    ///
    /// # Errors
    /// As [`RpcNode::call`]; [`RpcError::Overloaded`] when the calls to the peer have reached a bound.
    pub fn start<A: Serialize, R: DeserializeOwned>(
        &self,
        target: CallTarget<'_>,
        function: &RemoteFunction<A, R>,
        arguments: &A,
        values: impl Into<CallValues>,
        limit: Duration,
    ) -> Result<PendingCall<R>, RpcError> {
        let values = values.into();
        self.pending(
            target,
            function,
            arguments,
            values,
            limit,
            RoomPolicy::Refuse,
        )
    }

    /// Sends a call without a result. It is executed at most once; whether it is, and whether it fails, is not reported.
    ///
    /// # Errors
    /// As [`RpcNode::start`].
    pub fn send<A: Serialize, R>(
        &self,
        target: CallTarget<'_>,
        function: &RemoteFunction<A, R>,
        arguments: &A,
        values: impl Into<CallValues>,
        limit: Duration,
    ) -> Result<(), RpcError> {
        let (values, head) = (values.into(), self.head(function, arguments, limit)?);
        let kind = RpcFrameKind::Send;
        let call = (kind, head, values, limit);
        self.begin(target, function.name(), call, None, RoomPolicy::Refuse)?;
        Ok(())
    }

    fn pending<A: Serialize, R>(
        &self,
        target: CallTarget<'_>,
        function: &RemoteFunction<A, R>,
        arguments: &A,
        values: CallValues,
        limit: Duration,
        policy: RoomPolicy,
    ) -> Result<PendingCall<R>, RpcError> {
        let slot = Arc::new(CallSlot::default());
        let head = self.head(function, arguments, limit)?;
        let call = (RpcFrameKind::Call, head, values, limit);
        let for_result = Some(Arc::clone(&slot));
        let begun = self.begin(target, function.name(), call, for_result, policy)?;
        Ok(PendingCall {
            node: self.clone(),
            function: function.name(),
            version: function.version(),
            begun,
            limit,
            slot,
            result: PhantomData,
        })
    }

    fn head<A: Serialize, R>(
        &self,
        function: &RemoteFunction<A, R>,
        arguments: &A,
        limit: Duration,
    ) -> Result<Vec<u8>, RpcError> {
        let arguments = serde_json::to_vec(arguments).map_err(|error| RpcError::Conversion {
            what: "arguments",
            function: function.name().to_owned(),
            cause: error.to_string(),
        })?;
        let head = CallHead {
            version: function.version(),
            limit_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1),
            function: function.name(),
            arguments: &arguments,
        };
        Ok(head.encode())
    }

    /// Begins a call: (kind, head, values, limit).
    fn begin(
        &self,
        target: CallTarget<'_>,
        function: &str,
        call: (RpcFrameKind, Vec<u8>, CallValues, Duration),
        slot: Option<Arc<CallSlot>>,
        policy: RoomPolicy,
    ) -> Result<BegunCall, RpcError> {
        let shared = &self.shared;
        let (kind, head, values, limit) = call;
        let name = || function.to_owned();
        if let Err((bytes, limit)) = check_size(head.len(), values.len(), &shared.limits) {
            return Err(RpcError::TooLarge {
                function: name(),
                bytes,
                limit,
            });
        }
        let now = shared.clock.elapsed();
        let deadline = now + limit.min(LIMIT_MAX);
        let bytes = HEADER_BYTES + head.len() + 4 * values.len();
        let (mut state, index) = self.room(target, function, bytes, deadline, policy)?;
        let mut actions = Vec::new();
        let peer = &mut state.peers[index];
        let call = NewCall {
            kind,
            head,
            values,
            deadline,
            ticket: slot,
        };
        let number = peer.link.start(now, call, &mut actions);
        let peer = &state.peers[index];
        shared.carry_out(peer, actions);
        let begun = BegunCall {
            peer: index,
            peer_name: peer.peer.name.clone(),
            number,
            deadline,
        };
        let connection = peer.connection.clone();
        let must_dial = connection.is_none() && !peer.is_dialling;
        drop(state);
        match connection {
            Some(connection) => shared.write(&connection),
            None if must_dial => shared.wake(),
            None => {}
        }
        Ok(begun)
    }

    /// Returns the peer of a target that has room for a call, with the locked state; waits for room if `policy` allows it.
    fn room(
        &self,
        target: CallTarget<'_>,
        function: &str,
        bytes: usize,
        deadline: Duration,
        policy: RoomPolicy,
    ) -> Result<(MutexGuard<'_, NodeState>, usize), RpcError> {
        let shared = &self.shared;
        let name = || function.to_owned();
        let mut state = shared.lock();
        loop {
            if shared.is_closing.load(Ordering::SeqCst) {
                return Err(RpcError::Closing { function: name() });
            }
            let found = shared.find(&state, target);
            let index = found.ok_or_else(|| RpcError::NoSuchWorker {
                function: name(),
                target: target.to_string(),
            })?;
            let peer = &state.peers[index];
            let Err(full) = peer.link.check_room(bytes, &shared.limits) else {
                return Ok((state, index));
            };
            let left = deadline.saturating_sub(shared.clock.elapsed());
            if policy == RoomPolicy::Refuse || left.is_zero() {
                return Err(RpcError::Overloaded {
                    peer: peer.peer.name.clone(),
                    function: name(),
                    cause: full.to_string(),
                });
            }
            let waited = shared.has_room.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl fmt::Display for LinkFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls(limit) => write!(f, "{limit} calls are in flight, which is the limit"),
            Self::Bytes(limit) => write!(
                f,
                "the calls in flight would exceed the limit of {limit} bytes"
            ),
        }
    }
}

/// A call in flight. If it is dropped, its result is discarded, and the function is not executed unless it has begun.
#[must_use = "a call that is dropped is cancelled"]
pub struct PendingCall<R> {
    node: RpcNode,
    function: &'static str,
    version: u32,
    begun: BegunCall,
    limit: Duration,
    slot: Arc<CallSlot>,
    result: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned> PendingCall<R> {
    /// Waits for the result, at most until the limit of the call.
    ///
    /// # Errors
    /// As [`RpcNode::call`].
    pub fn wait(self) -> Result<(R, CallValues), RpcError> {
        let (head, values) = match self.wait_for_end() {
            CallEnd::Answer(head, values) => (head, values),
            end => return Err(self.error(end)),
        };
        let result = serde_json::from_slice(&head).map_err(|error| RpcError::Conversion {
            what: "result",
            function: self.function.to_owned(),
            cause: error.to_string(),
        })?;
        Ok((result, values))
    }
}

impl<R> PendingCall<R> {
    /// Returns whether [`PendingCall::wait`] would return at once.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let end = self.slot.end.lock();
        end.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the name of the worker that was called.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.begun.peer_name
    }

    fn wait_for_end(&self) -> CallEnd {
        let shared = &self.node.shared;
        let spin_until = shared.clock.elapsed() + SPIN;
        while !self.is_finished() && shared.clock.elapsed() < spin_until {
            thread::yield_now();
        }
        loop {
            let end = self.slot.end.lock();
            let mut end = end.unwrap_or_else(PoisonError::into_inner);
            if let Some(end) = end.take() {
                return end;
            }
            let left = self.begun.deadline.saturating_sub(shared.clock.elapsed());
            if !left.is_zero() {
                let waited = self.slot.is_set.wait_timeout(end, left);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(end);
            if self.cancel() {
                return CallEnd::DeadlinePassed;
            }
        }
    }

    /// Cancels the call unless it has ended; returns whether it did so.
    fn cancel(&self) -> bool {
        let shared = &self.node.shared;
        let mut actions = Vec::new();
        let mut state = shared.lock();
        let link = &mut state.peers[self.begun.peer].link;
        let is_cancelled = link.cancel(self.begun.number, &mut actions).is_some();
        let peer = &state.peers[self.begun.peer];
        shared.carry_out(peer, actions);
        let connection = peer.connection.clone().filter(|_| is_cancelled);
        drop(state);
        if is_cancelled {
            shared.has_room.notify_all();
        }
        if let Some(connection) = connection {
            shared.write(&connection);
        }
        is_cancelled
    }

    fn error(&self, end: CallEnd) -> RpcError {
        let peer = self.begun.peer_name.clone();
        let function = self.function.to_owned();
        let limit_s = self.limit.as_secs_f64();
        match end {
            CallEnd::PeerLost(cause) => RpcError::PeerLost {
                peer,
                function,
                cause,
            },
            CallEnd::Refused(cause) => RpcError::Refused {
                peer,
                function,
                cause,
            },
            CallEnd::Closing | CallEnd::Answer(..) => RpcError::Closing { function },
            CallEnd::DeadlinePassed | CallEnd::Failure(FailureCode::DeadlinePassed, _) => {
                RpcError::DeadlinePassed {
                    peer,
                    function,
                    limit_s,
                }
            }
            CallEnd::Failure(code, cause) => self.failure(peer, function, code, cause),
        }
    }

    fn failure(
        &self,
        peer: String,
        function: String,
        code: FailureCode,
        cause: String,
    ) -> RpcError {
        match code {
            FailureCode::UnknownFunction => RpcError::UnknownFunction {
                peer,
                function,
                version: self.version,
                cause,
            },
            FailureCode::Overloaded => RpcError::Overloaded {
                peer,
                function,
                cause,
            },
            FailureCode::Arguments => RpcError::Conversion {
                what: "arguments",
                function,
                cause,
            },
            FailureCode::AnswerDropped => RpcError::PeerLost {
                peer,
                function,
                cause,
            },
            FailureCode::FunctionFailed | FailureCode::TooLarge | FailureCode::DeadlinePassed => {
                RpcError::FunctionFailed {
                    peer,
                    function,
                    message: cause,
                }
            }
        }
    }
}

impl<R> Drop for PendingCall<R> {
    fn drop(&mut self) {
        self.cancel();
    }
}
