//! The exchanges of a divided state: sums before the vote, and weights after the update.

use ronde_core::{Buffer, CollectiveError, CollectivesExt, DType, Operation, Work};
use ronde_engine::Layer;

use super::update::incomplete;
use super::{CopyPartners, DataParallel};
use crate::ParallelError;
use crate::strategy::GradientPart;
use crate::update_sums::{UpdateSums, WholeSums};

/// The number of buckets whose weights are in flight at once.
const IN_FLIGHT: usize = 2;

impl DataParallel {
    /// Gathers the samples and the sums of all ranks; returns the number of all samples and the sums over all blocks.
    pub(super) fn gather_sums(
        &self,
        samples: u64,
        sums: &UpdateSums,
    ) -> Result<(u64, WholeSums), ParallelError> {
        let sums = sums.encode();
        let mut bytes = samples.to_le_bytes().to_vec();
        bytes.extend((sums.len() as u64).to_le_bytes());
        bytes.extend(sums);
        let gathered = self.group.all_gather(&bytes);
        let gathered = gathered.map_err(|source| self.bucket_error(0, source))?;
        let (total, ranks) = decode_gathered(&gathered).ok_or_else(incomplete)?;
        let whole = WholeSums::new(&self.state, &ranks).ok_or_else(incomplete)?;
        Ok((total, whole))
    }

    /// Sends each reduced slice to the rank that holds its second copy, and receives the one of which this rank has the
    /// copy.
    pub(super) fn copy_slices(
        &self,
        CopyPartners { holder, owner }: CopyPartners,
        parts: &mut Vec<GradientPart>,
    ) -> Result<(), ParallelError> {
        let size = self.group.size();
        let mut works = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let elements = self.buckets[index].slice_of(owner).unwrap_or_default();
            let lens = |rank: usize, len: usize| {
                let mut lens = vec![0; size];
                lens[rank] = len;
                lens
            };
            let operation = Operation::AllToAllUnequal {
                send_lens: lens(holder, part.sum.len()),
                receive_lens: lens(owner, elements.len()),
            };
            let slice = Buffer::copy_of(part.sum.as_slice::<f32>());
            let work = self.group.start(operation, slice);
            works.push((
                index,
                elements,
                work.map_err(|source| self.bucket_error(index, source))?,
            ));
        }
        for (index, elements, work) in works {
            let sum = work
                .wait()
                .map_err(|source| self.bucket_error(index, source))?;
            parts.push(GradientPart {
                elements,
                sum,
                is_owned: false,
            });
        }
        parts.sort_by_key(|part| part.elements.start);
        Ok(())
    }

    /// Receives the weights of all slices from their owners.
    pub(super) fn gather_slices(&mut self) -> Result<(), ParallelError> {
        self.chain.release_state();
        let mut in_flight: Vec<Option<Box<dyn Work>>> = Vec::new();
        for index in 0..self.buckets.len() + IN_FLIGHT {
            if index < self.buckets.len() {
                let started = self.start_gathering(index);
                let started = started.map_err(|source| self.bucket_error(index, source))?;
                in_flight.push(Some(started));
            }
            let Some(done) = index.checked_sub(IN_FLIGHT) else {
                continue;
            };
            let Some(work) = in_flight.get_mut(done).and_then(Option::take) else {
                continue;
            };
            let weights = work.wait();
            let weights = weights.map_err(|source| self.bucket_error(done, source))?;
            let elements = self.buckets[done].plan.elements.clone();
            self.state.values_mut()[elements].copy_from_slice(weights.as_slice());
        }
        Ok(())
    }

    /// Starts to gather the weights of a bucket.
    fn start_gathering(&self, index: usize) -> Result<Box<dyn Work>, CollectiveError> {
        let mine = self.buckets[index].received_by(self.group.rank());
        let mut weights = self.group.allocate(DType::F32, mine.len())?;
        let values = &self.state.values()[mine];
        weights.as_mut_slice::<f32>().copy_from_slice(values);
        self.group.start(Operation::AllGather, weights)
    }
}

/// Decodes what all ranks have gathered: samples, length and sums of each.
fn decode_gathered(mut bytes: &[u8]) -> Option<(u64, Vec<UpdateSums>)> {
    let mut total = 0_u64;
    let mut ranks = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(16)?;
        let (samples, len) = header.split_at(8);
        let len = u64::from_le_bytes(len.try_into().ok()?);
        let (sums, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        total = total.checked_add(u64::from_le_bytes(samples.try_into().ok()?))?;
        ranks.push(UpdateSums::decode(sums)?);
        bytes = rest;
    }
    Some((total, ranks))
}
