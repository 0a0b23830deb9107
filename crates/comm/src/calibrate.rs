//! Calibration: a group runs its own all_reduce by each algorithm, and measures the cost of its links.
//!
//! The operations themselves carry the plan: the first word of each is rank 0's plan for the
//! next one (the other ranks contribute zero, so the sum is the plan), and the second adds up how long the
//! previous one took on each rank. So all ranks run the same operations, as many as rank 0's time allows,
//! without extra messages. At the end rank 0 fits the costs and sends them, so all ranks have the same bits.
//!
//! The measurement takes about 30 ms while the group joins. Between hosts, increasing amounts are sent first, until the rate of
//! the links is stable. Sub-groups inherit the costs.

mod planner;

use std::time::Duration;

use planner::{CalibrationPlanner, TrialOperation};
use ronde_core::{Buffer, CollectiveError, Collectives, DType, GroupRank, Operation, ReduceOp};
use ronde_schedule::choose::counts;
use ronde_schedule::{Algorithm, COST_WORDS, CostModel, CostSample, Hosts};

use crate::config::Calibration;
use crate::group::ProcessGroup;
use crate::host::this_host;
use crate::kernels;
use crate::program::{self, invalid};

const NAME: &str = "calibrating";
/// Length of the shortest operation in words: plan, time, and padding.
const WORDS: usize = 16;
/// Length of a member's input in words: time, cores, host, and hash of the configured hosts.
const INPUT_WORDS: usize = 4;

/// Size of the reduction that is timed, in bytes, and how many times it runs.
const REDUCED_BYTES: usize = 64 << 10;
const REDUCED_TIMES: usize = 5;

/// Size above which a group measures only algorithms in which a rank exchanges data with few peers.
const LARGE: usize = 64;
const SPARSE: [Algorithm; 2] = [Algorithm::HalvingDoubling, Algorithm::Tree];

/// One member's input to the calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CalibrationInput {
    /// Nanoseconds; 0 disables measuring.
    within: u64,
    cores: u64,
    /// Equal for members on one host.
    host: u64,
    /// Hash of [`crate::GroupConfig::hosts`]; 0 if not set.
    configured_hosts: u64,
}

impl CalibrationInput {
    fn words(self) -> [i64; INPUT_WORDS] {
        [self.within, self.cores, self.host, self.configured_hosts].map(u64::cast_signed)
    }

    fn of(words: &[i64]) -> Option<Self> {
        let [within, cores, host, configured_hosts] = *words.first_chunk()?;
        let [within, cores, host, configured_hosts] =
            [within, cores, host, configured_hosts].map(i64::cast_unsigned);
        Some(Self {
            within,
            cores,
            host,
            configured_hosts,
        })
    }
}

impl ProcessGroup {
    /// Measures the cost of the group's connections for about as long as `within`, and chooses
    /// algorithms by it from now on. All members must call it, in the same order relative to their other
    /// operations and with no operation pending; the shortest time of all members is used, and zero measures
    /// nothing. [`ProcessGroup::connect`] calls it.
    ///
    /// It runs all_reduces from a few bytes to 1 MiB by each algorithm, the longer ones only while time is
    /// left; over a link so slow that a few KiB take longer than `within`, it takes longer, by two of those.
    /// Where bytes cross between hosts it first runs all_reduces by one algorithm, up to 8 MiB and up to
    /// eight times as long, until two consecutive ones take the same time per byte; for that they may take up to 24
    /// times as long. The time that the first operation waits for late members is not counted.
    /// These operations have numbers and appear in the flight record like others. A group that shares
    /// memory measures nothing. The bits of plain floating-point sums may change with the choice.
    ///
    /// # Errors
    /// Those of an operation.
    pub fn calibrate(&self, within: Duration) -> Result<(), CollectiveError> {
        if self.size() == 1 || self.shares_memory() {
            return Ok(());
        }
        let inputs = self.gather_inputs(within)?;
        self.measure(&inputs)
    }

    /// Finds out which members share a host, and measures if configured. Called while joining.
    pub(crate) fn settle_costs(&mut self) -> Result<(), CollectiveError> {
        let within = match (self.config().calibration, self.config().algorithm) {
            (Calibration::Within(time), None) => time,
            _ => Duration::ZERO,
        };
        let inputs = self.gather_inputs(within)?;
        let told = inputs[0].configured_hosts;
        if let Some(rank) = inputs
            .iter()
            .position(|input| input.configured_hosts != told)
        {
            let problem = format!("group ranks 0 and {rank} have different host settings");
            return Err(invalid("joining a group", problem));
        }
        if told == 0 {
            let hosts: Vec<u64> = inputs.iter().map(|input| input.host).collect();
            self.set_hosts(Hosts::new(&hosts));
        }
        self.measure(&inputs)
    }

    /// Gathers the input of all members, by rank.
    fn gather_inputs(&self, within: Duration) -> Result<Vec<CalibrationInput>, CollectiveError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let told = self.config().hosts.as_ref();
        let mine = CalibrationInput {
            within: u64::try_from(within.as_nanos()).unwrap_or(u64::MAX / 2),
            cores: cores as u64,
            host: this_host(),
            configured_hosts: told.map_or(0, |hosts| program::hosts_hash(hosts) | 1),
        };
        let all = self.start_and_wait(Operation::AllGather, Buffer::copy_of(&mine.words()))?;
        let inputs = all
            .as_slice::<i64>()
            .chunks(INPUT_WORDS)
            .map(CalibrationInput::of);
        let inputs: Option<Vec<CalibrationInput>> = inputs.collect();
        inputs
            .filter(|inputs| inputs.len() == self.size())
            .ok_or_else(|| invalid(NAME, "a member uses another protocol".to_owned()))
    }

    fn measure(&self, inputs: &[CalibrationInput]) -> Result<(), CollectiveError> {
        let within = inputs.iter().map(|input| input.within).min().unwrap_or(0);
        if within == 0 {
            return Ok(());
        }
        let cores = inputs.iter().map(|input| input.cores).min().unwrap_or(1);
        let start = CostModel {
            cores: (cores as usize).max(1),
            byte_reduced_s: byte_reduced_s(),
            ..CostModel::default()
        };
        let mut run = CalibrationRun {
            group: self,
            buffers: Vec::new(),
            planner: self.planner(start.cores, Duration::from_nanos(within)),
        };
        let samples = run.all_steps()?;
        let fitted = start.fit(&samples).corrected_by(&run.planner.timings());
        let words = self.broadcast_costs(&fitted)?;
        let model = CostModel::from_words(&words)
            .ok_or_else(|| invalid(NAME, "invalid costs from rank 0".to_owned()))?;
        self.chooser().set_model(model);
        Ok(())
    }

    /// Returns rank 0's planner; the other ranks only use its lengths.
    fn planner(&self, cores: usize, within: Duration) -> CalibrationPlanner {
        let hosts = self.chooser().hosts();
        let (is_first, is_large) = (self.rank() == GroupRank(0), self.size() > LARGE);
        let counted = |algorithm, len| {
            let is_left_out = is_large && !SPARSE.contains(&algorithm);
            let is_direct = algorithm == Algorithm::Hierarchical && !hosts.are_nested();
            if !is_first || is_left_out || is_direct {
                return None;
            }
            let operation = Operation::AllReduce(ReduceOp::Sum);
            counts(algorithm, &operation, hosts, len, DType::I64.size(), cores).ok()
        };
        CalibrationPlanner::new(within, WORDS, counted)
    }

    /// Sends the costs of rank 0 to all ranks.
    fn broadcast_costs(&self, mine: &CostModel) -> Result<[u64; COST_WORDS], CollectiveError> {
        let mut words = [0; COST_WORDS];
        if self.rank() == GroupRank(0) {
            words = mine.to_words();
        }
        let brought = Buffer::copy_of(&words.map(u64::cast_signed));
        let told = self.run_by(Algorithm::Tree, brought)?;
        let told = told.as_slice::<i64>().first_chunk::<COST_WORDS>().copied();
        Ok(told.unwrap_or([-1; COST_WORDS]).map(i64::cast_unsigned))
    }

    /// Returns the sum of all ranks' buffers by an algorithm.
    fn run_by(&self, algorithm: Algorithm, buffer: Buffer) -> Result<Buffer, CollectiveError> {
        let operation = Operation::AllReduce(ReduceOp::Sum);
        let mut call = program::describe(&operation, &buffer, self.member())?;
        program::run_by(&mut call, algorithm, self.chooser().hosts());
        self.run_call(operation, call, buffer)
    }
}

/// One calibration in progress.
struct CalibrationRun<'a> {
    group: &'a ProcessGroup,
    /// Buffers by length in words; all zero except for the first words.
    buffers: Vec<(usize, Buffer)>,
    planner: CalibrationPlanner,
}

impl CalibrationRun<'_> {
    /// Runs the operations that rank 0 plans; returns its samples, none on other ranks.
    fn all_steps(&mut self) -> Result<Vec<CostSample>, CollectiveError> {
        let is_first = self.group.rank() == GroupRank(0);
        let (mut step, mut last) = (self.planner.first(), None);
        let mut record_own_time = Duration::ZERO;
        // The first operation also waits for late members: its time is not a cost of the links.
        let mut began = None;
        loop {
            let spent = began.map_or(Duration::ZERO, |began| {
                ronde_clock::now().duration_since(began)
            });
            let next = if is_first {
                self.planner.next(step, spent)
            } else {
                None
            };
            let plan = next.map_or(0, TrialOperation::encode);
            let words = [
                plan,
                i64::try_from(record_own_time.as_nanos()).unwrap_or(i64::MAX >> 16),
            ];
            let (told, time) = self.one(step, words)?;
            began = began.or_else(|| Some(ronde_clock::now()));
            if let Some(last) = last.filter(|_| is_first) {
                let mean = told[1].max(0) as f64 / self.group.size() as f64;
                self.planner.record_group_time(last, mean / 1e9);
            }
            self.planner.record_own_time(step, time.as_secs_f64());
            (last, record_own_time) = (Some(step), time);
            match told[0] {
                0 => return Ok(self.planner.samples()),
                plan => {
                    let next = TrialOperation::decode(plan, self.planner.lens().len());
                    step = next.ok_or_else(|| invalid(NAME, format!("invalid plan {plan}")))?;
                }
            }
        }
    }

    /// Runs one operation that carries two words.
    fn one(
        &mut self,
        step: TrialOperation,
        words: [i64; 2],
    ) -> Result<([i64; 2], Duration), CollectiveError> {
        let len = self.planner.lens()[step.level];
        let kept = self.buffers.iter().position(|(kept, _)| *kept == len);
        let mut buffer = match kept {
            Some(place) => self.buffers.swap_remove(place).1,
            // Written, so that its pages are allocated.
            None => Buffer::copy_of(&vec![0_i64; len]),
        };
        buffer.as_mut_slice::<i64>()[..2].copy_from_slice(&words);
        let start = ronde_clock::now();
        let mut result = self.group.run_by(step.algorithm, buffer)?;
        let record_own_time = ronde_clock::now().duration_since(start);
        let all = result.as_mut_slice::<i64>();
        let told = [all[0], all[1]];
        all[..2].fill(0);
        self.buffers.push((len, result));
        Ok((told, record_own_time))
    }
}

/// Measures the seconds to reduce a byte into another in the cache; takes about 50 µs.
fn byte_reduced_s() -> f64 {
    let (mut into, other) = (vec![0_u8; REDUCED_BYTES], vec![0_u8; REDUCED_BYTES]);
    let mut least = Duration::MAX;
    for _ in 0..REDUCED_TIMES {
        let start = ronde_clock::now();
        kernels::reduce(DType::F32, ReduceOp::Sum, &mut into, &other, true);
        least = least.min(ronde_clock::now().duration_since(start));
    }
    least.as_secs_f64() / REDUCED_BYTES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_after_encoding_and_decoding() {
        let input = CalibrationInput {
            within: u64::MAX / 2,
            cores: 3,
            host: u64::MAX,
            configured_hosts: 1 << 63 | 5,
        };
        assert_eq!(CalibrationInput::of(&input.words()), Some(input));
        assert_eq!(CalibrationInput::of(&input.words()[1..]), None);
    }
}
