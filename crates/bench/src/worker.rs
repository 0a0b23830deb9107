//! One rank of a run: connects, measures every case in turns, and, as rank 0, reports.

use std::cell::RefCell;
use std::net::TcpListener;

use ronde_core::{Assignment, Operation};
use ronde_schedule::{Algorithm, Hosts};

use crate::BenchError;
use crate::cases::{OperationCase, OperationCases};
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

/// Smallest buffers of which several go round.
const ROTATED_BYTES: usize = 1 << 20;
/// Most buffers that go round.
const TURNS_MAX: usize = 8;
/// Most operations of one turn.
const ITERATIONS_MAX: f64 = 2_000.0;
/// Fewest operations of one turn.
const ITERATIONS_MIN: f64 = 3.0;
/// Operations of the turn from which their count is computed.
const FIRST_ITERATIONS: usize = 3;

/// Measures what the task of `assignment` says.
///
/// # Errors
/// The first thing that goes wrong, with all that the user needs to know.
pub fn run(assignment: &Assignment, listener: Option<TcpListener>) -> Result<(), BenchError> {
    let task = BenchTask::decode(&assignment.task)?;
    let groups = Groups::connect(assignment, listener, &task.settings)?;
    let reporter = match groups.rank() {
        0 => Some(Reporter::connect(&task.socket)?),
        _ => None,
    };
    let mut worker = BenchWorker {
        ranks: assignment.world_size.len(),
        hosts: task.settings.layout(assignment.world_size.len()),
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
    /// Rank 0 alone has one.
    reporter: Option<Reporter>,
}

/// What takes turns at one size of one operation.
enum Runner<'a> {
    Ours(OperationCase, MeasuredOperation<'a>),
    Theirs(Competitor, usize, usize),
    Loop(RefCell<PlainLoop>),
}

/// Timings of one runner over all rounds.
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
                // Small sizes are one when parts are not cut below an element; a barrier has one.
                if before.replace(shape) != Some(shape) {
                    self.measure(shape, &cases.cases)?;
                }
            }
        }
        self.groups.wait()
    }

    /// All cases of one shape in turns.
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
                BenchError::channel("measuring", format!("no group was made for {case:?}"))
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

/// Every runner has a turn in every round, each round begins with another one.
fn in_turns(
    groups: &Groups,
    mut reporter: Option<&mut Reporter>,
    settings: &Settings,
    runners: &[Runner<'_>],
) -> Result<Vec<RunnerTimings>, BenchError> {
    let mut timed = Vec::new();
    for runner in runners {
        // The first turn is for caches, pages and connections, the second says how long it takes.
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
        for place in 0..runners.len() {
            let place = (place + round) % runners.len();
            let iterations = timed[place].iterations;
            let (seconds, _) = run_turn(groups, &mut reporter, &runners[place], iterations)?;
            timed[place].seconds.extend(seconds);
        }
    }
    Ok(timed)
}

/// One turn: timings and the seconds that it took in all.
fn run_turn(
    groups: &Groups,
    reporter: &mut Option<&mut Reporter>,
    runner: &Runner<'_>,
    iterations: usize,
) -> Result<(Vec<f64>, f64), BenchError> {
    // Nobody is still busy with the turn before; those who wait sleep.
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

/// How many buffers go round on each rank: as many as it takes to be twice as large as the largest
/// cache, as far as memory allows; small ones stay in the cache anyway.
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
    fn buffers_go_round_until_the_cache_is_too_small_or_memory_is() {
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
