//! [`CodedExchange`]: the sum of the displacements of replicas in a short form.
//!
//! Every rank sends each owner the part of its replicas' displacements in the owner's slice. The owner adds these along the tree over
//! replicas, rounds the sum, and all ranks gather it. The rounded numbers belong to replicas and to the sum, never to ranks, so
//! the bits do not depend on the ranks. Cost of a rank among `n`: (n - 1) / n of a short form for each replica, and as much for
//! the sum.

use ronde_core::exact::TreeSum;
use ronde_core::shards::ShardPlan;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Operation, Work};

use crate::ModelState;
use crate::outer_codec::{OuterCodec, OuterFormat};

/// The exchange of one rank.
pub(crate) struct CodedExchange {
    codec: OuterCodec,
    /// The number of elements of the flat state.
    len: usize,
    /// The displacements of the replicas of this rank in a round, in their order.
    payloads: Vec<Vec<u8>>,
    /// Memory of earlier displacements.
    free: Vec<Vec<u8>>,
    scratch: Vec<f32>,
    in_flight: Option<Box<dyn Work>>,
}

impl CodedExchange {
    pub(crate) fn new(state: &ModelState, format: OuterFormat) -> Self {
        Self {
            codec: OuterCodec::new(state, format),
            len: state.len(),
            payloads: Vec::new(),
            free: Vec::new(),
            scratch: Vec::new(),
            in_flight: None,
        }
    }

    /// Discards a round.
    pub(crate) fn reset(&mut self) {
        self.free.append(&mut self.payloads);
        self.in_flight = None;
    }

    /// Takes the memory for a displacement; [`CodedExchange::add`] follows.
    pub(crate) fn take_scratch(&mut self) -> Vec<f32> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(self.len, 0.0);
        scratch
    }

    /// Adds the displacement of the next replica.
    pub(crate) fn add(&mut self, displacement: Vec<f32>) {
        let mut payload = self.free.pop().unwrap_or_default();
        payload.resize(self.codec.bytes(), 0);
        self.codec.encode(&displacement, &mut payload);
        self.payloads.push(payload);
        self.scratch = displacement;
    }

    /// Sends the displacements to the owners of their slices.
    pub(crate) fn start(
        &mut self,
        group: &dyn Group,
        replicas: &ShardPlan,
    ) -> Result<(), CollectiveError> {
        let slices = self.codec.slices(group.size());
        let bytes: Vec<_> = slices
            .iter()
            .map(|slice| self.codec.bytes_of(slice))
            .collect();
        let own = bytes[group.rank().index()].len();
        let send_lens: Vec<usize> = (bytes.iter())
            .map(|bytes| bytes.len() * self.payloads.len())
            .collect();
        let receive_lens = (0..group.size())
            .map(|rank| own * replicas.run(GroupRank(rank as u32)).len())
            .collect();
        let mut buffer = group.allocate(DType::U8, send_lens.iter().sum())?;
        let mut rest = buffer.bytes_mut();
        for bytes in &bytes {
            for payload in &self.payloads {
                let (to, after) = rest.split_at_mut(bytes.len());
                to.copy_from_slice(&payload[bytes.clone()]);
                rest = after;
            }
        }
        self.free.append(&mut self.payloads);
        let operation = Operation::AllToAllUnequal {
            send_lens,
            receive_lens,
        };
        self.in_flight = Some(group.start(operation, buffer)?);
        Ok(())
    }

    /// Waits for the displacements of this rank's slice, adds them, and gathers the sums of all slices; `None` if the exchange was
    /// not started. Returns the sum over all replicas, as a flat state.
    pub(crate) fn finish(
        &mut self,
        group: &dyn Group,
        replicas: &ShardPlan,
    ) -> Option<Result<Buffer, CollectiveError>> {
        let received = self.in_flight.take()?.wait();
        Some(received.and_then(|received| self.gather_sum(group, replicas, &received)))
    }

    fn gather_sum(
        &self,
        group: &dyn Group,
        replicas: &ShardPlan,
        received: &Buffer,
    ) -> Result<Buffer, CollectiveError> {
        let slice = self
            .codec
            .slices(group.size())
            .swap_remove(group.rank().index());
        let bytes = self.codec.bytes_of(&slice).len();
        let mut sum = TreeSum::new(replicas.shards());
        let mut free = Vec::new();
        // An empty slice has nothing to add.
        let each = received.bytes().chunks_exact(bytes.max(1));
        for (replica, form) in (0..).zip(each) {
            let fresh = || Buffer::host(DType::F32, self.codec.elements_of(&slice));
            let mut values = free.pop().unwrap_or_else(fresh);
            self.codec
                .decode_blocks(&slice, form, values.as_mut_slice());
            free.extend(sum.add_shard(replica, values));
        }
        let mut own = group.allocate(DType::U8, bytes)?;
        if let Some((_, total)) = sum.take().pop() {
            self.codec
                .encode_blocks(&slice, total.as_slice(), own.bytes_mut());
        }
        let all = group.start_and_wait(Operation::AllGather, own)?;
        let mut whole = Buffer::host(DType::F32, self.len);
        self.codec.decode(all.bytes(), whole.as_mut_slice());
        Ok(whole)
    }
}
