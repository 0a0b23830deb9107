//! A soak test: random operations and messages on overlapping groups, several pending, from one seed.
//!
//! A failure prints the command that repeats it. Other seeds and longer runs:
//! `RONDE_SOAK_SEED=7 RONDE_SOAK_OPERATIONS=1000000 cargo test --release -p ronde-comm --test group soak`.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use ronde_comm::testing::{run_ranks, spawn_ranks};
use ronde_comm::{GroupConfig, ProcessGroup};
use ronde_core::philox::Stream;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Mesh, Operation,
    PointToPoint, ReduceOp, Tag, Work,
};
use ronde_schedule::Algorithm;

use crate::meshes::{Kind, groups};
use crate::reference::{expected, input, is_right, operations};

/// For the whole test, and for each operation.
const LIMIT: Duration = Duration::from_secs(300);
/// Number of members; the mesh of two of the groups needs this size.
pub(crate) const SIZE: usize = 6;
/// Number of operations after which all groups are made again.
const ROUND: usize = 1000;

/// The parameters of a soak test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u32,
    pub(crate) operations: usize,
}

impl Plan {
    /// Returns this plan, or the one in the environment.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests have no arguments of their own"
    )]
    pub(crate) fn or_environment(self) -> Self {
        let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>());
        let number = |name, usual| variable(name).map_or(usual, |number| number.expect("a number"));
        Self {
            seed: number("RONDE_SOAK_SEED", u64::from(self.seed)) as u32,
            operations: number("RONDE_SOAK_OPERATIONS", self.operations as u64) as usize,
        }
    }

    /// Formats a problem with the command that repeats it.
    pub(crate) fn replay(self, test: &str, problem: impl Display) -> String {
        let Self { seed, operations } = self;
        format!(
            "{problem}\n  again: RONDE_SOAK_SEED={seed} RONDE_SOAK_OPERATIONS={operations} \
             cargo test --release -p ronde-comm --test group {test}"
        )
    }
}

/// Random numbers that are the same on every rank.
struct Dice {
    stream: Stream,
    rolled: u64,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.rolled += 1;
        self.stream.block(self.rolled)[0] as usize % sides
    }
}

/// A started operation and its expected result.
struct Started {
    number: usize,
    what: String,
    work: Box<dyn Work>,
    expected: Vec<f64>,
}

impl Started {
    fn check(self) -> Result<(), String> {
        let Self {
            number,
            what,
            work,
            expected,
        } = self;
        let result = work
            .wait()
            .map_err(|error| format!("operation {number}, {what}: {error}"))?;
        if !is_right(&result, expected) {
            return Err(format!(
                "operation {number}, {what}: a wrong result, {result:?}"
            ));
        }
        Ok(())
    }
}

/// Returns the group itself and the groups of some of its members that this one is in.
fn sub_groups(
    group: &ProcessGroup,
    dice: &mut Dice,
) -> Result<Vec<Option<ProcessGroup>>, CollectiveError> {
    let mesh = Mesh::new([("dp", 3), ("tp", 2)]).expect("the axes differ");
    let rank = group.rank().0;
    let mut subs = vec![
        Some(group.split_mesh(&mesh, "dp")?),
        Some(group.split_mesh(&mesh, "tp")?),
    ];
    for number in 0..3_u32 {
        let colours: Vec<_> = (0..group.size()).map(|_| dice.roll(3) as u32).collect();
        let colour = colours[rank as usize];
        let algorithm = Algorithm::ALL[dice.roll(Algorithm::ALL.len())];
        let key = rank.wrapping_mul(number);
        let configure = |config: &mut GroupConfig| config.algorithm = Some(algorithm);
        subs.push(group.split_with((colour > 0).then_some(colour), key, configure)?);
    }
    Ok(subs)
}

/// Returns a buffer in memory of the group, or unchanged.
fn placed(on: &ProcessGroup, buffer: Buffer, registered: bool) -> Buffer {
    if !registered {
        return buffer;
    }
    let mut own = on
        .allocate(buffer.dtype(), buffer.len())
        .expect("there is memory");
    own.bytes_mut().copy_from_slice(buffer.bytes());
    own
}

/// The random choices of one operation, equal on all ranks.
struct Throw {
    kind: usize,
    dtype: DType,
    op: ReduceOp,
    len: usize,
    positions: [usize; 2],
    tag: usize,
    memory: usize,
}

impl Throw {
    fn new(dice: &mut Dice) -> Self {
        let dtype = DType::ALL[dice.roll(DType::ALL.len())];
        let ops = ReduceOp::ALL.into_iter();
        let ops: Vec<_> = ops.filter(|op| op.refusal(dtype).is_none()).collect();
        Self {
            kind: dice.roll(13),
            dtype,
            op: ops[dice.roll(ops.len())],
            len: [0, 1, 3, 64, 65, 127, 1000, 5000][dice.roll(8)],
            positions: [dice.roll(SIZE), dice.roll(SIZE)],
            tag: dice.roll(3),
            memory: dice.roll(1 << SIZE),
        }
    }

    /// Starts the chosen operation on one group; `None` for members that a message does not concern.
    fn start(&self, on: &ProcessGroup, number: usize) -> Result<Option<Started>, CollectiveError> {
        let &Self {
            kind,
            dtype,
            op,
            len,
            ..
        } = self;
        let (rank, size) = (on.rank().index(), on.size());
        let [root, to] = self.positions.map(|position| position % size);
        let registered = self.memory >> rank & 1 == 1;
        let describe = |what: &dyn std::fmt::Debug| {
            format!("{what:?} of {len} {dtype} on rank {rank} of {size}")
        };
        let mut all = operations(op, GroupRank(root as u32), rank, size, len);
        if kind < all.len() {
            let operation = all.swap_remove(kind);
            let buffer = placed(on, input(dtype, &operation, rank, size, len), registered);
            return Ok(Some(Started {
                number,
                what: describe(&operation),
                work: on.start(operation.clone(), buffer)?,
                expected: expected(&operation, rank, size, len),
            }));
        }
        let tag = Tag(self.tag as u32);
        let sent = Operation::AllReduce(ReduceOp::Sum);
        let content = || input(dtype, &sent, root, size, len);
        let work = if root != to && rank == root {
            on.send(GroupRank(to as u32), tag, placed(on, content(), registered))?
        } else if root != to && rank == to {
            let into = placed(on, Buffer::host(dtype, len), registered);
            on.receive(GroupRank(root as u32), tag, into)?
        } else {
            return Ok(None);
        };
        Ok(Some(Started {
            number,
            what: describe(&("message", root, to, tag)),
            work,
            // The result on a single rank would be its own input.
            expected: expected(
                &Operation::Broadcast {
                    root: GroupRank(root as u32),
                },
                rank,
                size,
                len,
            ),
        }))
    }
}

/// Runs the plan's operations on this member's groups, up to eight pending; all ranks call it.
pub(crate) fn soak(group: &ProcessGroup, plan: Plan) -> Result<(), String> {
    let failed = |error: CollectiveError| error.to_string();
    let mut dice = Dice {
        stream: Stream::new([plan.seed, 0, 0, 9]),
        rolled: 0,
    };
    let mut under_way: VecDeque<Started> = VecDeque::new();
    let mut subs = Vec::new();
    for number in 0..plan.operations {
        if number.is_multiple_of(ROUND) {
            under_way.drain(..).try_for_each(Started::check)?;
            subs = sub_groups(group, &mut dice).map_err(failed)?;
        }
        let index = dice.roll(subs.len() + 1);
        let throw = Throw::new(&mut dice);
        let wait = dice.roll(8);
        let on = subs.get(index).map_or(Some(group), Option::as_ref);
        let started = on.map(|on| throw.start(on, number)).transpose();
        let started =
            started.map_err(|error| format!("cannot start operation {number}: {error}"))?;
        under_way.extend(started.flatten());
        while under_way.len() > wait
            && let Some(started) = under_way.pop_front()
        {
            started.check()?;
        }
    }
    under_way.into_iter().try_for_each(Started::check)?;
    group.barrier().map_err(failed)
}

#[test]
fn ten_thousand_random_operations_equal_the_reference() {
    let test = "ten_thousand_random_operations_equal_the_reference";
    let plan = Plan {
        seed: 1,
        operations: 10_000,
    };
    let plan = plan.or_environment();
    spawn_ranks(SIZE, LIMIT, move |group| {
        soak(&group, plan).map_err(|problem| plan.replay(test, problem))
    });
}

#[test]
fn random_operations_over_sockets_and_shared_memory_equal_the_reference() {
    let test = "random_operations_over_sockets_and_shared_memory_equal_the_reference";
    for (kind, seed) in [
        (Kind::Tcp, 2),
        (Kind::Tls, 3),
        (Kind::Shared, 4),
        (Kind::TwoHosts, 5),
    ] {
        let operations = 1000;
        let plan = Plan { seed, operations }.or_environment();
        run_ranks(groups(kind, SIZE, LIMIT), LIMIT, move |group| {
            soak(&group, plan).map_err(|problem| plan.replay(test, format!("{kind:?}: {problem}")))
        });
    }
}
