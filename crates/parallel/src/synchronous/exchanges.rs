//! The exchanges of a divided state: sums before the vote, second copies, and weights after the update.

use std::collections::VecDeque;

use ronde_core::{Buffer, CollectivesExt, DType, Operation, Tag, Work};

use super::SynchronousStrategy;
use super::mesh::CopyPartners;
use super::program::exchange;
use super::reducer::Reducer;
use super::state_slices::incomplete;
use crate::bucket::buckets_in_flight;
use crate::error::ParallelError;
use crate::state::ModelState;
use crate::step_method::GradientPart;
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
        let connected = &self.connected;
        let gathered = connected.mesh.all.all_gather(&bytes);
        let gathered = gathered.map_err(|source| connected.reducer.bucket_error(0, source))?;
        let (total, ranks) = decode_gathered(&gathered).ok_or_else(incomplete)?;
        let whole = WholeSums::new(&self.slices.weights, &ranks).ok_or_else(incomplete)?;
        Ok((total, whole))
    }

    /// Sends each reduced part to the rank that holds its second copy, and receives those whose copy this rank has.
    pub(super) fn copy_parts(
        &self,
        CopyPartners { holder, owner }: CopyPartners,
        parts: &mut Vec<GradientPart>,
    ) -> Result<(), ParallelError> {
        let all = &*self.connected.mesh.all;
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
}

impl Reducer {
    /// Gathers the weights of buckets, one after the other, and passes those of each to `arrived`.
    pub(super) fn gather_each(
        &self,
        buckets: &[usize],
        state: &mut ModelState,
        mut arrived: impl FnMut(&mut ModelState, usize, &[f32]),
    ) -> Result<(), ParallelError> {
        let mut in_flight: VecDeque<(usize, Box<dyn Work>)> = VecDeque::new();
        let mut later = buckets.iter().peekable();
        loop {
            let bytes = |index: usize| 4 * self.buckets()[index].len();
            while later
                .peek()
                .is_some_and(|&&next| in_flight.len() < buckets_in_flight(bytes(next)))
                && let Some(&index) = later.next()
            {
                let started = self.start_gathering(index, state)?;
                in_flight.push_back((index, started));
            }
            let Some((index, work)) = in_flight.pop_front() else {
                return Ok(());
            };
            let weights = work.wait();
            let weights = weights.map_err(|source| self.bucket_error(index, source))?;
            arrived(state, index, weights.as_slice());
        }
    }

    /// Starts to gather the weights of a bucket.
    pub(super) fn start_gathering(
        &self,
        index: usize,
        state: &ModelState,
    ) -> Result<Box<dyn Work>, ParallelError> {
        let group = self.same_layers()?;
        let mine = self.buckets()[index].slice_of(group.rank().index());
        let weights = group.allocate(DType::F32, mine.len());
        let started = weights.and_then(|mut weights| {
            let values = state.get(&mine).unwrap_or_default();
            weights.as_mut_slice::<f32>().copy_from_slice(values);
            group.start(Operation::AllGather, weights)
        });
        started.map_err(|source| self.bucket_error(index, source))
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
