//! [`LinkTimes`]: measures what exchanging bytes between two workers of this host takes.

use std::collections::VecDeque;
use std::thread;

use ronde_comm::ProcessGroup;
use ronde_core::exact::ExactSum;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation,
    PointToPoint, Tag,
};
use ronde_schedule::choose::counts;
use ronde_schedule::{Algorithm, CostModel, CostSample, Hosts};

use crate::config::CommSection;
use crate::error::TrainError;
use crate::local_ranks::on_local_ranks;

/// The numbers of elements of the measured sums, and how often each runs.
const SUMS: [(usize, usize); 4] = [(16, 40), (4096, 40), (1 << 16, 15), (1 << 20, 7)];
/// The numbers of elements of the measured messages, and how often each travels both ways.
const MESSAGES: [(usize, usize); 2] = [(16, 40), (1 << 18, 10)];
/// The number of buffers that sums of one length use in turns: gradients come from memory rather than from the caches.
const BUFFERS: usize = 6;
const TAG: Tag = Tag(0x706c_616e);

/// The measured costs of exchanging bytes between workers of this host, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkTimes {
    /// The costs of collectives.
    pub collectives: CostModel,
    /// A short message.
    pub message_s: f64,
    /// Each further byte of a message.
    pub message_byte_s: f64,
    /// Whether the workers share memory.
    pub shares_memory: bool,
}

/// The median times of one rank.
struct RankTimes {
    sums: Vec<f64>,
    messages: Vec<f64>,
    shares_memory: bool,
}

impl LinkTimes {
    /// Measures two ranks on this host, connected by the run file: exact sums of up to 4 MiB and messages of up to 1 MiB.
    /// Cost: about 0.1 s and 60 MiB.
    ///
    /// # Errors
    /// When the ranks cannot be connected.
    pub fn measure(section: &CommSection) -> Result<Self, TrainError> {
        let measured = on_local_ranks(section, 2, |group| {
            let rank = group.rank().0;
            measure_rank(&group).map_err(|source| TrainError::Connect { rank, source })
        })?;
        let longest = |of: fn(&RankTimes) -> &Vec<f64>, index: usize| {
            let each = measured.iter().map(|rank| of(rank)[index]);
            each.fold(0.0, f64::max)
        };
        let hosts = Hosts::one(2);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let samples = SUMS.iter().enumerate().filter_map(|(index, &(len, _))| {
            let operation = Operation::ExactSum(pair_sum()?);
            let counted = counts(Algorithm::Direct, &operation, &hosts, len, 4, cores).ok()?;
            Some(CostSample {
                counts: counted,
                seconds: longest(|rank| &rank.sums, index),
            })
        });
        let samples: Vec<CostSample> = samples.collect();
        let short_s = longest(|rank| &rank.messages, 0);
        let long_s = longest(|rank| &rank.messages, 1);
        let bytes = 4 * (MESSAGES[1].0 - MESSAGES[0].0);
        let start = CostModel {
            cores,
            ..CostModel::default()
        };
        Ok(Self {
            collectives: start.fit(&samples),
            message_s: short_s,
            message_byte_s: (long_s - short_s).max(0.0) / bytes as f64,
            shares_memory: measured.iter().all(|rank| rank.shares_memory),
        })
    }
}

/// Returns the exact sum of two ranks with one shard each.
fn pair_sum() -> Option<ExactSum> {
    ExactSum::new(vec![0, 1, 2])
}

fn measure_rank(group: &ProcessGroup) -> Result<RankTimes, CollectiveError> {
    let mut sums = Vec::new();
    for (len, times) in SUMS {
        sums.push(measure_sum(group, len, times)?);
    }
    let mut messages = Vec::new();
    for (len, times) in MESSAGES {
        messages.push(measure_message(group, len, times)?);
    }
    group.barrier()?;
    Ok(RankTimes {
        sums,
        messages,
        shares_memory: group.shares_memory(),
    })
}

/// Returns the median seconds of an exact sum, without the first one.
fn measure_sum(group: &ProcessGroup, len: usize, times: usize) -> Result<f64, CollectiveError> {
    let Some(sum) = pair_sum() else {
        return Ok(0.0);
    };
    let buffers = (0..BUFFERS).map(|_| group.allocate(DType::F32, len));
    let mut buffers: VecDeque<Buffer> = buffers.collect::<Result<_, _>>()?;
    let mut seconds = Vec::with_capacity(times);
    for buffer in &mut buffers {
        buffer.as_mut_slice::<f32>().fill(0.5);
    }
    for _ in 0..=times {
        let Some(buffer) = buffers.pop_front() else {
            break;
        };
        let begun = ronde_clock::seconds();
        let reduced = group.start_and_wait(Operation::ExactSum(sum.clone()), buffer)?;
        seconds.push(ronde_clock::seconds() - begun);
        buffers.push_back(reduced);
    }
    Ok(median(seconds))
}

/// Returns the median seconds of a message in one direction, without the first one.
fn measure_message(group: &ProcessGroup, len: usize, times: usize) -> Result<f64, CollectiveError> {
    let is_first = group.rank() == GroupRank(0);
    let other = GroupRank(u32::from(is_first));
    let mut seconds = Vec::with_capacity(times);
    let values = vec![0.5_f32; len];
    for _ in 0..=times {
        let begun = ronde_clock::seconds();
        let awaited = group.receive(other, TAG, Buffer::host(DType::F32, len))?;
        if is_first {
            group.send(other, TAG, Buffer::copy_of(&values))?.wait()?;
            awaited.wait()?;
        } else {
            let received = awaited.wait()?;
            group.send(other, TAG, received)?.wait()?;
        }
        seconds.push((ronde_clock::seconds() - begun) / 2.0);
    }
    Ok(median(seconds))
}

/// Returns the median without the first value, which touches memory for the first time.
fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_of_this_host_are_positive() {
        let found = LinkTimes::measure(&CommSection::default()).unwrap();
        assert!(found.collectives.is_measured);
        assert!(
            found.message_s > 0.0 && found.message_byte_s >= 0.0,
            "{found:?}"
        );
        assert!(found.collectives.operation_s >= 0.0 && found.collectives.byte_s >= 0.0);
    }
}
