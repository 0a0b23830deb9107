//! Handing over: a group that ends gives its streams to the next group of the process, with the bytes that are under way on them.

use super::StreamExecutor;
use super::mailbox::Successor;
use super::peer::{Peer, StreamState};
use crate::connect::KeptStream;

impl StreamExecutor {
    /// Leaves without an end of the streams, and sends those that can be continued to `successor`. Sent bytes still
    /// arrive. The peers learn from the hello of the next generation that this rank has left.
    pub(super) fn hand_over(mut self, successor: &Successor) {
        self.flush();
        self.report();
        // Before any message is released.
        self.lending = None;
        let others = self.others();
        let streams = others.filter_map(|peer| Some((peer, self.take_stream(peer)?)));
        let streams = streams.collect();
        // The next group may have stopped waiting; then the streams end here.
        let _late = successor.send(streams);
    }

    fn take_stream(&mut self, peer: usize) -> Option<KeptStream> {
        let state = &mut self.peers[peer];
        let can_continue = matches!(
            state.presence,
            StreamState::Here | StreamState::InNextGeneration
        );
        if !can_continue || state.write_failed || state.is_garbled {
            return None;
        }
        let unsent = state.take_unsent();
        let (unread, skipped) = (state.unread.bytes().to_vec(), state.frame_left);
        let stream = self.transport.release(peer)?;
        Some(KeptStream {
            stream,
            unsent,
            unread,
            skipped,
        })
    }
}

impl Peer {
    /// Returns the bytes that are still to be sent. Messages among them fail here, because their receiver may skip them.
    fn take_unsent(&mut self) -> Vec<u8> {
        let mut unsent = Vec::new();
        for mut frame in std::mem::take(&mut self.out) {
            let start = unsent.len();
            unsent.extend(frame.encoded());
            unsent.drain(start..start + frame.done);
        }
        unsent
    }
}
