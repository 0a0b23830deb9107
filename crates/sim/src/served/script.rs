//! [`ServedScript`]: the size and the faults of a simulated round.

use ronde_core::Step;
use ronde_protocol::served::ServedRound;

use crate::clock::MS;
use crate::rng::Rng;

/// A known bug, to prove that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBug {
    /// After a failure, an update counts as complete if the first slot has applied it.
    TrustsFirstSlot,
    /// A copy applies updates as they arrive, not in the order of its slot.
    CopiesOutOfOrder,
    /// A worker pushes to the first slot before the others, and does not wait for their answers.
    PushesFirstSlotFirst,
    /// A server applies an update again if it is pushed again.
    AppliesTwice,
    /// The lead grants leases without regard to the bound, and slots do not check it.
    IgnoresBound,
}

impl ServedBug {
    /// All known bugs, with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("trusts-first-slot", Self::TrustsFirstSlot),
        ("copies-out-of-order", Self::CopiesOutOfOrder),
        ("pushes-first-slot-first", Self::PushesFirstSlotFirst),
        ("applies-twice", Self::AppliesTwice),
        ("ignores-bound", Self::IgnoresBound),
    ];
}

/// The size and the faults of a simulated round. Times are nanoseconds.
#[derive(Debug, Clone)]
pub struct ServedScript {
    /// The number of processes.
    pub processes: usize,
    /// The round.
    pub round: ServedRound,
    /// The number of ranks that have each slot.
    pub copies: u32,
    /// The bound of staleness.
    pub staleness_max: Option<u64>,
    /// The time in which each process computes an update.
    pub paces: Vec<u64>,
    /// The rates of lost and repeated messages, per thousand.
    pub loss: u64,
    /// The rate of damaged gradients, per thousand.
    pub damage: u64,
    /// The longest usual delay of a message.
    pub delay_max: u64,
    /// The process that dies at each time, and whether the others are notified.
    pub kills: Vec<(u64, usize, bool)>,
    /// The time of the last fault.
    pub calm: u64,
}

impl ServedScript {
    /// Draws a script.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Self {
        let processes = rng.range(1, 7) as usize;
        let slots = rng.range(1, 3) as u32;
        let round = ServedRound {
            step: Step(rng.range(0, 5)),
            start: rng.bits(),
            updates: rng.range(1, 60) as u32,
            slots,
        };
        let paces = (0..processes).map(|_| rng.range(2, 12) * MS);
        let paces = paces.collect();
        let is_calm = rng.per_mille(200);
        let deaths = match is_calm {
            true => 0,
            false => rng.range(0, 4),
        };
        let mut kills: Vec<(u64, usize, bool)> = (0..deaths)
            .map(|_| {
                let victim = rng.range(0, processes as u64 - 1) as usize;
                (rng.range(MS, 150 * MS), victim, rng.per_mille(700))
            })
            .collect();
        kills.sort_unstable();
        let last = kills.last().map_or(0, |(at, ..)| *at);
        Self {
            processes,
            round,
            copies: rng.range(1, 2) as u32,
            staleness_max: rng.per_mille(600).then(|| rng.range(0, 8)),
            paces,
            loss: if is_calm { 0 } else { rng.range(0, 120) },
            damage: if is_calm { 0 } else { rng.range(0, 60) },
            delay_max: rng.range(MS / 10, 4 * MS),
            kills,
            calm: last + 200 * MS,
        }
    }
}
