//! Received frames: answers for calls of this node, and calls for its functions.

use std::sync::Arc;
use std::time::Duration;

use super::{ConnectionSide, RpcConnectionEnd};
use crate::callee::CallReceipt;
use crate::connection::RpcConnection;
use crate::frame::{CallHead, FailureCode, FrameBody, RpcFrameKind};
use crate::handlers::{self, FunctionRun};
use crate::lease::ProcessName;
use crate::node::NodeShared;

/// Handles one frame. Frames to transmit are queued on the connection.
pub(super) fn handle(
    shared: &Arc<NodeShared>,
    connection: &RpcConnection,
    side: &ConnectionSide,
    frame: FrameBody,
) -> Result<(), RpcConnectionEnd> {
    match (side, frame.kind) {
        (ConnectionSide::Dialled(peer), RpcFrameKind::Answer | RpcFrameKind::Failure) => {
            let mut actions = Vec::new();
            let mut state = shared.lock();
            let peer = &mut state.peers[*peer];
            peer.link.answered(frame, &mut actions);
            shared.carry_out(peer, actions);
            Ok(())
        }
        (
            ConnectionSide::Accepted(Some(caller)),
            RpcFrameKind::Call
            | RpcFrameKind::Send
            | RpcFrameKind::Acknowledge
            | RpcFrameKind::Cancel
            | RpcFrameKind::Waiting,
        ) => from_caller(shared, connection, caller, frame),
        (_, RpcFrameKind::Returned) => match connection.returned(frame.call) {
            true => Ok(()),
            false => Err(RpcConnectionEnd::Lost(
                "it read more values than this worker lent".to_owned(),
            )),
        },
        (_, kind) => Err(RpcConnectionEnd::Lost(format!(
            "it sent an unexpected frame ({kind:?})"
        ))),
    }
}

fn from_caller(
    shared: &Arc<NodeShared>,
    connection: &RpcConnection,
    caller: &Arc<ProcessName>,
    frame: FrameBody,
) -> Result<(), RpcConnectionEnd> {
    let mut state = shared.lock();
    let Some(session) = state.sessions.get_mut(&**caller) else {
        return Err(RpcConnectionEnd::Lost("its calls are forgotten".to_owned()));
    };
    let current = session.connection.as_ref().map(|current| current.number);
    if current != Some(connection.number) {
        return Err(RpcConnectionEnd::Lost(
            "it has a newer connection".to_owned(),
        ));
    }
    let session = &mut session.session;
    match frame.kind {
        RpcFrameKind::Acknowledge => session.acknowledged(frame.listed()),
        RpcFrameKind::Waiting => session.resumed(frame.listed()),
        RpcFrameKind::Cancel => session.cancelled(frame.call),
        kind => match session.received(kind, frame.call, shared.limits.queued_calls_max) {
            CallReceipt::Ignore => {}
            CallReceipt::Repeat(answer) | CallReceipt::Refuse(answer) => {
                connection.queue(answer);
            }
            CallReceipt::Execute(receipt) => {
                if let Some(receipt) = receipt {
                    connection.queue(receipt);
                }
                drop(state);
                begin(shared, caller, frame);
            }
        },
    }
    Ok(())
}

/// Passes a call to its function, or queues an answer why it cannot be executed. The answers of this thread are written
/// after the last received frame.
fn begin(shared: &Arc<NodeShared>, caller: &Arc<ProcessName>, frame: FrameBody) {
    let call = frame.call;
    let found = CallHead::decode(&frame.head)
        .map_err(|cause| (FailureCode::Arguments, cause.to_string()))
        .and_then(|head| {
            let found = shared.functions.find(head.function, head.version);
            let found = found.map_err(|cause| (FailureCode::UnknownFunction, cause.to_string()))?;
            Ok((found.clone(), head.limit_ms))
        });
    let (function, limit_ms) = match found {
        Ok(found) => found,
        Err((code, cause)) => {
            let _written_later = shared.answer(caller, FrameBody::failure(call, code, &cause));
            return;
        }
    };
    let run = FunctionRun {
        caller: Arc::clone(caller),
        frame,
        deadline: shared.clock.elapsed() + Duration::from_millis(limit_ms.into()),
        function,
    };
    if run.function.is_immediate {
        let _written_later = handlers::execute(shared, run);
        return;
    }
    let max = shared.limits.queued_calls_max;
    if !shared.handlers.push(run, max) {
        let text = format!("{max} calls wait there for a thread, which is the limit");
        let failure = FrameBody::failure(call, FailureCode::Overloaded, &text);
        let _written_later = shared.answer(caller, failure);
    }
}
