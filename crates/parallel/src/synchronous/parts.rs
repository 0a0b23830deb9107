//! [`GroupParts`]: the exchange with the ranks that compute the other parts of the same layers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::exact::ExactSum;
use ronde_core::step_layout::StepLayout;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Operation};
use ronde_engine::{NotSummed, PartExchange};

use super::timer::ComputeClock;

/// The report of an exchange besides its values.
#[derive(Default)]
struct ExchangeLog {
    failed: Option<CollectiveError>,
    waited_s: f64,
}

/// The exchange among the ranks that have the same layers and shards, and different parts.
pub(super) struct GroupParts {
    group: Arc<dyn Group>,
    sum: ExactSum,
    clock: Option<ComputeClock>,
    log: Mutex<ExchangeLog>,
}

impl GroupParts {
    pub(super) fn new(
        group: Arc<dyn Group>,
        layout: &StepLayout,
        parts: u32,
        clock: Option<ComputeClock>,
    ) -> Option<Self> {
        let ends = (0..layout.tensors()).map(|tensor| layout.parts_at(tensor, parts).end);
        let bounds = std::iter::once(0).chain(ends).collect();
        Some(Self {
            group,
            sum: ExactSum::new(bounds)?,
            clock,
            log: Mutex::default(),
        })
    }

    fn log(&self) -> MutexGuard<'_, ExchangeLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the error of the last failed exchange.
    pub(super) fn take_failed(&self) -> Option<CollectiveError> {
        self.log().failed.take()
    }

    /// Takes the seconds in which this rank has waited.
    pub(super) fn take_waited_s(&self) -> f64 {
        std::mem::take(&mut self.log().waited_s)
    }

    fn run(&self, operation: Operation, parts: &[Vec<f32>]) -> Result<Vec<f32>, NotSummed> {
        let now = || self.clock.map_or(0.0, |clock| clock());
        let begun = now();
        let buffer = self.joined(parts);
        let done = buffer.and_then(|buffer| self.group.start_and_wait(operation, buffer));
        let mut log = self.log();
        log.waited_s += now() - begun;
        match done {
            Ok(values) => Ok(values.as_slice::<f32>().to_vec()),
            Err(error) => {
                log.failed = Some(error);
                Err(NotSummed)
            }
        }
    }

    fn joined(&self, parts: &[Vec<f32>]) -> Result<Buffer, CollectiveError> {
        let elements = parts.iter().map(Vec::len).sum();
        let mut buffer = self.group.allocate(DType::F32, elements)?;
        let mut rest = buffer.as_mut_slice::<f32>();
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        Ok(buffer)
    }
}

impl PartExchange for GroupParts {
    fn sum(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed> {
        self.run(Operation::ExactSum(self.sum.clone()), &subtrees)
    }

    fn sum_scattered(
        &self,
        subtrees: Vec<Vec<f32>>,
        elements: &[usize],
    ) -> Result<Vec<f32>, NotSummed> {
        let of_rank = |rank: usize| {
            let parts = self.sum.run(GroupRank(rank as u32));
            let own = &elements[parts.start as usize..parts.end as usize];
            own.iter().sum()
        };
        let scatter = Operation::ExactSumScatter {
            sum: self.sum.clone(),
            lens: (0..self.sum.size()).map(of_rank).collect(),
        };
        self.run(scatter, &subtrees)
    }

    fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed> {
        self.run(Operation::AllGather, &[own])
    }
}
