//! Messages between two members of a group.

use ronde_core::{Buffer, CollectiveError, GroupRank, PointToPoint, ReduceOp, Tag, Work};

use crate::frame::{Call, CallKind};
use crate::group::ProcessGroup;
use crate::program::{self, GroupMember, invalid};
use crate::stream_executor::ExecutorCommand;
use crate::work::pending;

impl ProcessGroup {
    /// Checks a message, and returns its description and the peer's index.
    fn message(
        &self,
        what: &str,
        peer: GroupRank,
        tag: Tag,
        buffer: &Buffer,
    ) -> Result<(Call, usize), CollectiveError> {
        let GroupMember { rank, size } = self.member();
        if peer == rank || peer.index() >= size {
            let problem = format!("group rank {peer} is not another member of a group of {size}");
            return Err(invalid(what, problem));
        }
        program::check_memory(what, buffer)?;
        let call = Call {
            kind: CallKind::Message,
            dtype: buffer.dtype(),
            op: ReduceOp::Sum,
            algorithm: None,
            detail: u64::from(tag.0),
            len: buffer.len() as u64,
        };
        Ok((call, peer.index()))
    }
}

impl PointToPoint for ProcessGroup {
    fn send(
        &self,
        to: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let (call, to) = self.message("send", to, tag, &buffer)?;
        let (completion, work) = pending();
        self.post(ExecutorCommand::Send {
            to,
            call,
            buffer,
            completion,
        })?;
        Ok(Box::new(work))
    }

    fn receive(
        &self,
        from: GroupRank,
        tag: Tag,
        buffer: Buffer,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let (call, from) = self.message("receive", from, tag, &buffer)?;
        let (completion, work) = pending();
        self.post(ExecutorCommand::Receive {
            from,
            call,
            buffer,
            completion,
        })?;
        Ok(Box::new(work))
    }
}
