//! One rank of a run: connects, measures every case in turns, and, as rank 0, reports.

use std::cell::RefCell;
use std::net::TcpListener;

use ronde_comm::Security;
use ronde_core::Operation;
use ronde_protocol::Assignment;
use ronde_schedule::{Algorithm, Hosts};

use crate::cases::{OperationCase, OperationCases};
use crate::error::BenchError;
use crate::groups::Groups;
use crate::measure::{MeasuredOperation, REUSES};
use crate::operation::{OperationKind, OperationShape};
use crate::plain_loop::PlainLoop;
use crate::reference::ReferenceResult;
use crate::report::{Implementation, MeasurementRow};
use crate::settings::{BenchTask, BenchTransport, BufferMemory, Competitor, Settings};
use crate::sizes::show_bytes;
use crate::statistics::Statistics;
use crate::turns::{CompetitorTurn, Reporter};
use crate::values::ElementSource;

/// The minimum size of buffers used in rotation.
const ROTATED_BYTES: usize = 1 << 20;
/// The maximum number of buffers in rotation.
const TURNS_MAX: usize = 8;
/// The maximum number of operations of one turn.
const ITERATIONS_MAX: f64 = 2_000.0;
/// The minimum number of operations of one turn.
const ITERATIONS_MIN: f64 = 3.0;
/// The number of operations of the turn from which their number is computed.
const FIRST_ITERATIONS: usize = 3;

/// Performs the measurements of `assignment`. Connections are secured by `security` where the settings name no
/// transport.
///
/// # Errors
/// The first error, with everything that the user needs to know.
pub fn run(
    assignment: &Assignment,
    listener: Option<TcpListener>,
    security: Security,
) -> Result<(), BenchError> {
    let task = BenchTask::decode(&assignment.task)?;
    let groups = Groups::connect(assignment, listener, security, &task.settings)?;
    let reporter = match groups.rank() {
        0 => Some(Reporter::connect(&task.socket)?),
        _ => None,
    };
    let mut worker = BenchWorker {
        ranks: assignment.world_size.len(),
        hosts: groups.hosts().clone(),
        task,
        groups,
        reporter,
    };
    worker.measure_all()
}

struct BenchWorker {
    task: BenchTask,
    ranks: usize,
    hosts: Hosts,
    groups: Groups,
    /// Only rank 0 has one.
    reporter: Option<Reporter>,
}

/// An implementation that takes turns at one size of one operation.
enum Runner<'a> {
    Ours(OperationCase, MeasuredOperation<'a>),
    Theirs(Competitor, usize, usize),
    Loop(RefCell<PlainLoop>),
}

/// The timings of one implementation over all rounds.
struct RunnerTimings {
    iterations: usize,
    seconds: Vec<f64>,
}

impl BenchWorker {
    fn measure_all(&mut self) -> Result<(), BenchError> {
        for kind in self.task.settings.operations.clone() {
            let cases = OperationCases::of(&self.task.settings, kind, &self.hosts);
            if let Some(reporter) = &mut self.reporter {
                for note in &cases.notes {
                    reporter.note(note)?;
                }
            }
            if cases.cases.is_empty() {
                continue;
            }
            let mut before = None;
            for bytes in self.task.settings.sizes.clone() {
                let settings = &self.task.settings;
                let shape =
                    OperationShape::new(kind, settings.op, settings.dtype, self.ranks, bytes);
                // Small sizes are equal when parts are not cut below an element; a barrier has one
                // size.
                if before.replace(shape) != Some(shape) {
                    self.measure(shape, &cases.cases)?;
                }
            }
        }
        self.groups.wait()
    }

    /// Measures all cases of one shape in turns.
    fn measure(
        &mut self,
        shape: OperationShape,
        cases: &[OperationCase],
    ) -> Result<(), BenchError> {
        let settings = &self.task.settings;
        let source = ElementSource::new(settings.seed, settings.op);
        let expected = ReferenceResult::new(shape, self.groups.rank(), source);
        let turns = turns(settings, self.task.cache_bytes, self.ranks, shape.bytes());
        let mut runners = Vec::new();
        for &case in cases {
            let group = self.groups.of(&case).ok_or_else(|| {
                BenchError::channel("measure", format!("there is no group for {case:?}"))
            })?;
            let measured = MeasuredOperation {
                name: name(&shape, &case),
                group,
                shape,
                memory: case.memory,
                expected: &expected,
                turns,
            };
            runners.push(Runner::Ours(case, measured));
        }
        if shape.kind == OperationKind::AllReduce {
            runners.extend(settings.against.iter().map(|&other| match other {
                Competitor::Loop => {
                    let (seed, bytes) = (settings.seed, shape.bytes());
                    Runner::Loop(PlainLoop::new(seed, self.ranks, bytes, turns).into())
                }
                _ => Runner::Theirs(other, shape.bytes(), turns),
            }));
        }
        let timed = in_turns(&self.groups, self.reporter.as_mut(), settings, &runners)?;
        let Some(reporter) = &mut self.reporter else {
            return Ok(());
        };
        let complete = runners.iter().zip(timed).filter_map(|(runner, timed)| {
            let times = Statistics::of(timed.seconds)?;
            Some(row(&shape, runner, times, turns, self.task.cache_bytes))
        });
        reporter.rows(complete.collect())
    }
}

/// Every implementation has a turn in every round; each round begins with another one.
fn in_turns(
    groups: &Groups,
    mut reporter: Option<&mut Reporter>,
    settings: &Settings,
    runners: &[Runner<'_>],
) -> Result<Vec<RunnerTimings>, BenchError> {
    let mut timed = Vec::new();
    for runner in runners {
        // The first turn warms up caches, pages and connections, the second determines the
        // duration.
        run_turn(groups, &mut reporter, runner, 1)?;
        let (_, wall_s) = run_turn(groups, &mut reporter, runner, FIRST_ITERATIONS)?;
        let each = (wall_s / FIRST_ITERATIONS as f64).max(1e-7);
        let count = (settings.budget_s / each).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
        timed.push(RunnerTimings {
            iterations: groups.agree(count as u64)? as usize,
            seconds: Vec::new(),
        });
    }
    for round in 0..settings.rounds {
        for offset in 0..runners.len() {
            let index = (offset + round) % runners.len();
            let iterations = timed[index].iterations;
            let (seconds, _) = run_turn(groups, &mut reporter, &runners[index], iterations)?;
            timed[index].seconds.extend(seconds);
        }
    }
    Ok(timed)
}

/// Runs one turn; returns its timings and its total seconds.
fn run_turn(
    groups: &Groups,
    reporter: &mut Option<&mut Reporter>,
    runner: &Runner<'_>,
    iterations: usize,
) -> Result<(Vec<f64>, f64), BenchError> {
    // No rank is still busy with the previous turn; waiting ranks sleep.
    groups.wait()?;
    match runner {
        Runner::Ours(_, measured) => {
            let turn = measured.turn(iterations)?;
            Ok((turn.seconds, turn.wall.as_secs_f64()))
        }
        Runner::Loop(plain) => {
            let seconds = plain.borrow_mut().turn(iterations);
            let wall_s = seconds.iter().sum();
            Ok((seconds, wall_s))
        }
        Runner::Theirs(backend, bytes, buffers) => {
            let turn = CompetitorTurn {
                backend: *backend,
                bytes: *bytes,
                iterations,
                buffers: *buffers,
                reuses: REUSES,
            };
            match reporter {
                Some(reporter) => reporter.their_turn(turn),
                None => Ok((Vec::new(), 0.0)),
            }
        }
    }
}

/// Returns the number of buffers used in rotation on each rank: enough to exceed twice the largest
/// cache, as far as memory permits; small ones stay in the cache anyway.
fn turns(settings: &Settings, cache_bytes: u64, ranks: usize, bytes: usize) -> usize {
    if bytes < ROTATED_BYTES {
        return 1;
    }
    let together = (ranks * bytes) as u64;
    let wanted = (2 * cache_bytes)
        .div_ceil(together)
        .clamp(1, TURNS_MAX as u64) as usize;
    let fits =
        |turns: &usize| settings.buffer_bytes(ranks, bytes, *turns) <= settings.memory_bytes_max;
    (1..=wanted).rev().find(fits).unwrap_or(1)
}

fn name(shape: &OperationShape, case: &OperationCase) -> String {
    let OperationCase {
        transport,
        memory,
        algorithm,
    } = case;
    format!(
        "{} of {} on {} ranks over {transport}, {memory} memory, algorithm {algorithm}",
        shape.kind,
        show_bytes(shape.bytes()),
        shape.ranks
    )
}

fn row(
    shape: &OperationShape,
    runner: &Runner<'_>,
    times: Statistics,
    turns: usize,
    cache: u64,
) -> MeasurementRow {
    let working_set_bytes = (turns * shape.ranks * shape.bytes()) as u64;
    let way = match runner {
        Runner::Theirs(name, ..) => Implementation::Other { name: *name },
        Runner::Loop(_) => Implementation::Other {
            name: Competitor::Loop,
        },
        Runner::Ours(case, measured) => ours(shape, case, measured),
    };
    MeasurementRow {
        operation: shape.kind,
        bytes: shape.bytes(),
        ranks: shape.ranks,
        way,
        times,
        buffers: turns,
        working_set_bytes,
        in_cache: working_set_bytes < 2 * cache,
    }
}

fn ours(
    shape: &OperationShape,
    case: &OperationCase,
    measured: &MeasuredOperation<'_>,
) -> Implementation {
    let operation = shape.operation(0).unwrap_or(Operation::Barrier);
    let choice = measured
        .group
        .choice(&operation, shape.dtype, shape.input_len(0));
    let message = shape.kind == OperationKind::SendReceive;
    let (algorithm, reason) = match choice.algorithm {
        _ if message => (shape.kind.one_way(), "a message to one rank".to_owned()),
        Some(algorithm) => (algorithm.name(), choice.reason),
        None if choice.by_shared_memory => (Algorithm::Direct.name(), choice.reason),
        None => (shape.kind.one_way(), choice.reason),
    };
    let algorithm = algorithm.to_owned();
    let shares = measured.group.shares_memory();
    let over = match case.transport {
        BenchTransport::Auto if shares => BenchTransport::SharedMemory,
        BenchTransport::Auto => BenchTransport::Tcp,
        other => other,
    };
    Implementation::Ronde {
        transport: case.transport,
        over,
        memory: if shares {
            case.memory
        } else {
            BufferMemory::Any
        },
        preference: case.algorithm.to_string(),
        algorithm,
        reason,
        predicted_us: choice
            .predicted
            .filter(|_| !message)
            .map(|time| time.as_secs_f64() * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::small;

    #[test]
    fn buffers_rotate_beyond_the_cache_as_far_as_memory_permits() {
        let mut settings = small();
        settings.memory_bytes_max = 8 << 30;
        let cache = 64 << 20;
        assert_eq!(turns(&settings, cache, 2, 64 << 10), 1);
        assert_eq!(turns(&settings, cache, 2, 1 << 20), 8);
        assert_eq!(turns(&settings, cache, 2, 16 << 20), 4);
        assert_eq!(turns(&settings, cache, 4, 64 << 20), 1);
        assert_eq!(turns(&settings, 0, 2, 64 << 20), 1);
        settings.memory_bytes_max = settings.buffer_bytes(2, 16 << 20, 3);
        assert_eq!(turns(&settings, cache, 2, 16 << 20), 3);
        settings.memory_bytes_max = 0;
        assert_eq!(turns(&settings, cache, 2, 16 << 20), 1);
    }
}
