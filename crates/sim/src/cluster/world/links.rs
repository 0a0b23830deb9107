//! The delivery of messages, and the responses of the store.

use ronde_protocol::{StoreReply, StoreRequest};

use super::{ClusterWorld, ProcessEvent, QueuedEvent};
use crate::clock::MS;
use crate::cluster::effect::HostMessage;
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::injected_bug::InjectedBug;
use crate::network::HostIndex;

impl ClusterWorld {
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
                let at = self.timeline.now() + 40 * MS;
                self.timeline.schedule(
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
        let delays = if message.is_datagram() && from != to {
            self.network.deliveries(from, to, &mut self.rng)
        } else {
            vec![self.network.delay(&mut self.rng)]
        };
        for delay in delays {
            let message = message.clone();
            self.timeline.schedule_after(
                delay + extra,
                QueuedEvent::Deliver {
                    from,
                    to,
                    message,
                    sender,
                },
            );
        }
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
