//! The exchanges of a divided state: sums before the vote, and weights after the update.

use std::collections::VecDeque;

use ronde_core::{Buffer, CollectiveError, CollectivesExt, DType, Group, Operation, Tag, Work};
use ronde_engine::LayerExt;

use super::SynchronousStrategy;
use super::mesh::CopyPartners;
use super::program::exchange;
use super::update::incomplete;
use crate::bucket::buckets_in_flight;
use crate::error::ParallelError;
use crate::strategy::GradientPart;
use crate::update_sums::{UpdateSums, WholeSums};

/// The tag of the second copies of gradients.
const COPY_TAG: Tag = Tag(0x636f_7079);

/// The number of copies of gradients that are sent at once.
const IN_FLIGHT: usize = 2;

impl SynchronousStrategy {
    /// Gathers the numbers of counted targets and the sums of all ranks; returns the number of all targets and the sums over all blocks.
    pub(super) fn gather_sums(
        &self,
        targets: u64,
        sums: &UpdateSums,
    ) -> Result<(u64, WholeSums), ParallelError> {
        let sums = sums.encode();
        let mut bytes = targets.to_le_bytes().to_vec();
        bytes.extend((sums.len() as u64).to_le_bytes());
        bytes.extend(sums);
        let gathered = self.groups.all.all_gather(&bytes);
        let gathered = gathered.map_err(|source| self.bucket_error(0, source))?;
        let (total, ranks) = decode_gathered(&gathered).ok_or_else(incomplete)?;
        let whole = WholeSums::new(&self.state, &ranks).ok_or_else(incomplete)?;
        Ok((total, whole))
    }

    /// Sends each reduced part to the rank that holds its second copy, and receives those whose copy this rank has.
    pub(super) fn copy_parts(
        &self,
        CopyPartners { holder, owner }: CopyPartners,
        parts: &mut Vec<GradientPart>,
    ) -> Result<(), ParallelError> {
        let all = &*self.groups.all;
        let failed =
            |source| exchange("exchange the second copies of gradients".to_owned(), source);
        let division = self.division();
        let mut received = Vec::new();
        for elements in division.copied(owner, all.rank()) {
            let copy = Buffer::host(DType::F32, elements.len());
            let work = all.receive(owner, COPY_TAG, copy).map_err(failed)?;
            received.push((elements, work));
        }
        // Copies of a few parts at a time, which need little memory: the receiver's is there already.
        let mut sent: VecDeque<Box<dyn Work>> = VecDeque::new();
        for elements in division.copied(all.rank(), holder) {
            let has_all = |part: &&GradientPart| {
                part.elements.start <= elements.start && elements.end <= part.elements.end
            };
            let part = parts.iter().find(has_all).ok_or_else(incomplete)?;
            let copy = Buffer::copy_of(part.values(&elements));
            sent.push_back(all.send(holder, COPY_TAG, copy).map_err(failed)?);
            if sent.len() > IN_FLIGHT
                && let Some(first) = sent.pop_front()
            {
                first.wait().map_err(failed)?;
            }
        }
        for (elements, work) in received {
            parts.push(GradientPart {
                elements,
                sum: work.wait().map_err(failed)?,
                is_owned: false,
            });
        }
        for work in sent {
            work.wait().map_err(failed)?;
        }
        parts.sort_by_key(|part| part.elements.start);
        Ok(())
    }

    /// Receives the weights of this rank's layers from the ranks that update them, from an element on.
    pub(super) fn gather_slices(&mut self, first: usize) -> Result<(), ParallelError> {
        self.chain.release_state();
        let mut own = self.own_buckets();
        own.retain(|&index| self.buckets[index].plan.elements.end > first);
        self.gather_each(&own, |this, index, weights| {
            let elements = this.buckets[index].plan.elements.clone();
            if let Some(values) = this.state.get_mut(&elements) {
                values.copy_from_slice(weights);
            }
            if elements.start <= this.gathered {
                this.gathered = this.gathered.max(elements.end);
            }
        })
    }

    /// Gathers the weights of buckets, one after the other, and passes those of each to `arrived`.
    pub(super) fn gather_each(
        &mut self,
        buckets: &[usize],
        mut arrived: impl FnMut(&mut Self, usize, &[f32]),
    ) -> Result<(), ParallelError> {
        let mut in_flight: VecDeque<(usize, Box<dyn Work>)> = VecDeque::new();
        let mut later = buckets.iter().peekable();
        loop {
            let bytes = |index: usize| 4 * self.buckets[index].plan.elements.len();
            while later
                .peek()
                .is_some_and(|&&next| in_flight.len() < buckets_in_flight(bytes(next)))
                && let Some(&index) = later.next()
            {
                let group = self.same_layers()?;
                let started = self.start_gathering(&**group, index);
                let started = started.map_err(|source| self.bucket_error(index, source))?;
                in_flight.push_back((index, started));
            }
            let Some((index, work)) = in_flight.pop_front() else {
                return Ok(());
            };
            let weights = work.wait();
            let weights = weights.map_err(|source| self.bucket_error(index, source))?;
            arrived(self, index, weights.as_slice());
        }
    }

    /// Starts to gather the weights of a bucket.
    pub(super) fn start_gathering(
        &self,
        group: &dyn Group,
        index: usize,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let mine = self.buckets[index].slice_of(group.rank().index());
        let mut weights = group.allocate(DType::F32, mine.len())?;
        let values = self.state.get(&mine).unwrap_or_default();
        weights.as_mut_slice::<f32>().copy_from_slice(values);
        group.start(Operation::AllGather, weights)
    }
}

/// Decodes what all ranks have gathered: targets, length and sums of each.
fn decode_gathered(mut bytes: &[u8]) -> Option<(u64, Vec<UpdateSums>)> {
    let mut total = 0_u64;
    let mut ranks = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(16)?;
        let (targets, len) = header.split_at(8);
        let len = u64::from_le_bytes(len.try_into().ok()?);
        let (sums, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        total = total.checked_add(u64::from_le_bytes(targets.try_into().ok()?))?;
        ranks.push(UpdateSums::decode(sums)?);
        bytes = rest;
    }
    Some((total, ranks))
}
