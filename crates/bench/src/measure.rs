//! One turn of one case: fill buffers, synchronize all ranks, time operations, check a result.

use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, GroupRank, MemoryKind, Operation,
    PointToPoint, ReduceOp, Tag,
};

use crate::error::BenchError;
use crate::operation::{OperationKind, OperationShape};
use crate::reference::ReferenceResult;
use crate::settings::BufferMemory;

/// The number of times a buffer is reduced before it gets new data, because sums grow with each
/// time.
pub(crate) const REUSES: usize = 8;

/// A case as measured by one rank.
pub(crate) struct MeasuredOperation<'a> {
    /// The name of the case in errors.
    pub(crate) name: String,
    pub(crate) group: &'a ProcessGroup,
    pub(crate) shape: OperationShape,
    pub(crate) memory: BufferMemory,
    pub(crate) expected: &'a ReferenceResult,
    /// The number of buffers used in rotation, so that each has left the cache when it is used
    /// again.
    pub(crate) turns: usize,
}

/// The timings of a turn.
pub(crate) struct TurnTimings {
    /// The seconds of each operation on this rank.
    pub(crate) seconds: Vec<f64>,
    /// The duration of the turn from the first barrier to the last operation.
    pub(crate) wall: Duration,
}

impl MeasuredOperation<'_> {
    /// Runs the operation `iterations` times, the same on all ranks, and checks the whole result of
    /// the last one.
    ///
    /// # Errors
    /// The operation fails or returns a wrong result.
    pub(crate) fn turn(&self, iterations: usize) -> Result<TurnTimings, BenchError> {
        if self.shape.kind == OperationKind::SendReceive {
            return self.ping_pong(iterations);
        }
        let rank = self.group.rank().index();
        let operation = self.shape.operation(rank).unwrap_or(Operation::Barrier);
        if self.shape.kind.is_back_to_back() {
            self.back_to_back(&operation, iterations)
        } else {
            self.one_by_one(&operation, iterations)
        }
    }

    fn back_to_back(
        &self,
        operation: &Operation,
        iterations: usize,
    ) -> Result<TurnTimings, BenchError> {
        // Each buffer is used again: results have the same length and memory.
        let mut ring = (0..self.turns)
            .map(|_| self.allocate())
            .collect::<Result<Vec<_>, _>>()?;
        let mut last = Some(self.fresh()?);
        let reuses = match self.shape.op {
            // Repeated products soon leave the range of the type.
            ReduceOp::Product => 1,
            _ => REUSES,
        };
        let mut seconds = Vec::with_capacity(iterations);
        let begin = ronde_clock::now();
        for i in 0..iterations {
            if i % (self.turns * reuses) == 0 {
                for buffer in &mut ring {
                    self.fill(buffer);
                }
                self.barrier()?;
            }
            let is_last = i + 1 == iterations;
            let place = i % self.turns;
            let buffer = match last.take_if(|_| is_last) {
                Some(buffer) => buffer,
                None => std::mem::replace(&mut ring[place], Buffer::host(self.shape.dtype, 0)),
            };
            let call = operation.clone();
            let start = ronde_clock::now();
            let result = self.group.start_and_wait(call, buffer);
            seconds.push(start.elapsed().as_secs_f64());
            let result = self.checked(result)?;
            if is_last {
                self.expected.check(&result, &self.name)?;
            } else {
                ring[place] = result;
            }
        }
        let wall = begin.elapsed();
        Ok(TurnTimings { seconds, wall })
    }

    fn one_by_one(
        &self,
        operation: &Operation,
        iterations: usize,
    ) -> Result<TurnTimings, BenchError> {
        let mut ring = (0..self.turns)
            .map(|_| self.allocate())
            .collect::<Result<Vec<_>, _>>()?;
        let mut seconds = Vec::with_capacity(iterations);
        let begin = ronde_clock::now();
        for i in 0..iterations {
            let place = i % self.turns;
            let mut buffer = std::mem::replace(&mut ring[place], Buffer::host(self.shape.dtype, 0));
            if !self.is_usable(&buffer) {
                drop(buffer);
                buffer = self.allocate()?;
            }
            self.fill(&mut buffer);
            self.barrier()?;
            let call = operation.clone();
            let start = ronde_clock::now();
            let result = self.group.start_and_wait(call, buffer);
            seconds.push(start.elapsed().as_secs_f64());
            let result = self.checked(result)?;
            if i + 1 == iterations {
                self.expected.check(&result, &self.name)?;
            }
            ring[place] = result;
        }
        let wall = begin.elapsed();
        Ok(TurnTimings { seconds, wall })
    }

    /// Returns half the time of a message to rank 1 and back. Other ranks wait for the next turn.
    fn ping_pong(&self, iterations: usize) -> Result<TurnTimings, BenchError> {
        let mut seconds = Vec::with_capacity(iterations);
        self.barrier()?;
        let begin = ronde_clock::now();
        let rank = self.group.rank().index();
        if rank < 2 {
            let other = GroupRank(1 - rank as u32);
            let (mut mine, mut theirs) = (self.fresh()?, self.allocate()?);
            for _ in 0..iterations {
                let start = ronde_clock::now();
                if rank == 0 {
                    mine = self.send(other, mine)?;
                    theirs = self.receive(other, theirs)?;
                } else {
                    theirs = self.receive(other, theirs)?;
                    theirs = self.send(other, theirs)?;
                }
                seconds.push(start.elapsed().as_secs_f64() / 2.0);
            }
            self.expected.check(&theirs, &self.name)?;
        }
        let wall = begin.elapsed();
        Ok(TurnTimings { seconds, wall })
    }

    fn send(&self, to: GroupRank, buffer: Buffer) -> Result<Buffer, BenchError> {
        let sent = self.group.send(to, Tag(0), buffer);
        self.checked(sent.and_then(|work| work.wait()))
    }

    fn receive(&self, from: GroupRank, buffer: Buffer) -> Result<Buffer, BenchError> {
        let received = self.group.receive(from, Tag(0), buffer);
        self.checked(received.and_then(|work| work.wait()))
    }

    fn barrier(&self) -> Result<(), BenchError> {
        self.checked(self.group.barrier())
    }

    fn checked<T>(&self, outcome: Result<T, CollectiveError>) -> Result<T, BenchError> {
        outcome.map_err(|source| BenchError::Operation {
            case: self.name.clone(),
            source,
        })
    }

    fn len(&self) -> usize {
        self.shape.input_len(self.group.rank().index())
    }

    /// Returns a buffer in the memory of the case.
    fn allocate(&self) -> Result<Buffer, BenchError> {
        let (dtype, len) = (self.shape.dtype, self.len());
        let buffer = match self.memory {
            BufferMemory::Group => self.checked(self.group.allocate(dtype, len))?,
            BufferMemory::Any => Buffer::host(dtype, len),
        };
        if self.is_usable(&buffer) {
            return Ok(buffer);
        }
        Err(BenchError::NoSharedMemory {
            case: self.name.clone(),
            bytes: buffer.bytes().len(),
        })
    }

    /// Returns whether a buffer has the length and the memory of this case.
    fn is_usable(&self, buffer: &Buffer) -> bool {
        let registered = self.memory == BufferMemory::Group && self.group.shares_memory();
        buffer.len() == self.len()
            && (buffer.is_empty() || !registered || buffer.memory_kind() == MemoryKind::Shared)
    }

    fn fill(&self, buffer: &mut Buffer) {
        let input = self.expected.input.bytes();
        if buffer.bytes().len() == input.len() {
            buffer.bytes_mut().copy_from_slice(input);
        }
    }

    fn fresh(&self) -> Result<Buffer, BenchError> {
        let mut buffer = self.allocate()?;
        self.fill(&mut buffer);
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use ronde_comm::GroupConfig;
    use ronde_comm::testing::run_ranks;
    use ronde_core::DType;

    use super::*;
    use crate::values::ElementSource;

    /// Runs turns of an operation between threads; the second number is the seed of the last rank's
    /// reference.
    fn turns(kind: OperationKind, op: ReduceOp, seeds: [u64; 2]) -> Vec<Result<usize, String>> {
        let configs = (0..3).map(|rank| GroupConfig::new("turns", "turns", GroupRank(rank)));
        let groups = ProcessGroup::in_process(configs.collect());
        let groups = groups.into_iter().map(Result::unwrap).collect();
        run_ranks(groups, Duration::from_secs(60), move |group| {
            let shape = OperationShape::new(kind, op, DType::F32, 3, 1000);
            let rank = group.rank().index();
            let source = ElementSource::new(seeds[rank / 2], op);
            let measured = MeasuredOperation {
                name: format!("{kind}, tcp"),
                group: &group,
                shape,
                memory: BufferMemory::Any,
                expected: &ReferenceResult::new(shape, rank, source),
                turns: 2,
            };
            let turn = measured.turn(21).map_err(|error| error.to_string());
            Ok::<_, CollectiveError>(turn.map(|turn| turn.seconds.len()))
        })
    }

    #[test]
    fn every_operation_is_timed_and_correct() {
        for kind in OperationKind::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Product] {
                let outcome = turns(kind, op, [1, 1]);
                assert_eq!(outcome[0], Ok(21), "{kind}");
                assert!(outcome.iter().all(Result::is_ok), "{kind}: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_wrong_result_names_case_rank_and_element() {
        let outcome = turns(OperationKind::AllReduce, ReduceOp::Sum, [1, 2]);
        let error = outcome[2].as_ref().unwrap_err();
        assert!(
            error.starts_with("wrong result: all_reduce, tcp, rank 2, element 0 of 250: got "),
            "{error}"
        );
    }
}
