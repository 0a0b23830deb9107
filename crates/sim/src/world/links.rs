//! The delivery of messages, and the responses of the store.

use ronde_protocol::{StoreReply, StoreRequest};

use super::{ProcessEvent, QueuedEvent, World};
use crate::clock::MS;
use crate::effect::HostMessage;
use crate::fact::{Fact, WorkerExit};
use crate::injected_bug::InjectedBug;
use crate::network::HostIndex;

impl World {
    pub(super) fn deliver(
        &mut self,
        from: HostIndex,
        to: HostIndex,
        message: HostMessage,
        sender: u64,
    ) {
        if !message.is_datagram() && self.network.is_cut(from, to) {
            // Resent until it arrives or its sender has exited.
            if self.life(from) == Some(sender) {
                let at = self.now + 40 * MS;
                self.schedule(
                    at,
                    QueuedEvent::Deliver {
                        from,
                        to,
                        message,
                        sender,
                    },
                );
            }
            return;
        }
        match message {
            HostMessage::Start(worker) => self.start_worker(to, worker),
            HostMessage::Kill(worker) => {
                if self.workers[to]
                    .as_ref()
                    .is_some_and(|process| process.body.id == worker)
                {
                    self.end_worker(to, WorkerExit::Killed);
                }
            }
            HostMessage::Ask(index, request) => self.store(index, *request),
            message => self.happen(to, ProcessEvent::Arrives(from, message)),
        }
    }

    pub(super) fn send(
        &mut self,
        from: HostIndex,
        to: HostIndex,
        message: HostMessage,
        extra: u64,
        sender: u64,
    ) {
        let is_datagram = message.is_datagram();
        if is_datagram && from != to {
            let is_lost = self.rng.per_mille(self.network.loss) || self.network.is_cut(from, to);
            if is_lost {
                return;
            }
            if self.rng.per_mille(self.network.twice) {
                let at = self.now + self.network.delay(&mut self.rng);
                let message = message.clone();
                self.schedule(
                    at,
                    QueuedEvent::Deliver {
                        from,
                        to,
                        message,
                        sender,
                    },
                );
            }
        }
        let at = self.now + self.network.delay(&mut self.rng) + extra;
        self.schedule(
            at,
            QueuedEvent::Deliver {
                from,
                to,
                message,
                sender,
            },
        );
    }

    pub(super) fn store(&mut self, index: usize, request: StoreRequest) {
        let (id, before) = (request.id(), self.record.version);
        let mut reply = match (self.bug, request) {
            (Some(InjectedBug::StoreForgets), StoreRequest::Swap { record, .. })
                if record.generation > self.record.generation =>
            {
                StoreReply { id, record }
            }
            (Some(InjectedBug::StoreComparesNothing), StoreRequest::Swap { record, .. }) => {
                self.record = record;
                StoreReply {
                    id,
                    record: self.record.clone(),
                }
            }
            (_, request) => self.record.execute(request),
        };
        reply.id = id;
        if self.record.version != before {
            let record = self.record.clone();
            self.tell(Fact::Stored(record));
        }
        let (from, to) = (self.network_store(), self.script.workers + index);
        self.send(from, to, HostMessage::Answer(Box::new(reply)), 0, 0);
    }

    pub(super) fn network_store(&self) -> HostIndex {
        self.script.workers + self.script.coordinators
    }
}
