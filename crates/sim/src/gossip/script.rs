//! [`GossipScript`]: the size and the faults of a simulated round.

use ronde_core::Step;
use ronde_protocol::gossip::GossipRound;

use crate::clock::MS;
use crate::rng::Rng;

/// A known bug, to prove that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GossipBug {
    /// A replica that was away continues, also with updates that others have computed again.
    KeepsLateReplicas,
    /// Updates of a process that has died count as done.
    CountsLostUpdates,
    /// A repeated request gets another update.
    GrantsAgain,
    /// A process averages while it waits for the answer to its own exchange.
    AveragesWhileWaiting,
    /// A process that has finished its own updates does not ask for others.
    NeverHelps,
    /// A process answers exchanges only between two updates.
    AnswersBetweenUpdates,
}

impl GossipBug {
    /// All known bugs, with their names on the command line.
    pub const ALL: [(&'static str, Self); 6] = [
        ("keeps-late-replicas", Self::KeepsLateReplicas),
        ("counts-lost-updates", Self::CountsLostUpdates),
        ("grants-again", Self::GrantsAgain),
        ("averages-while-waiting", Self::AveragesWhileWaiting),
        ("never-helps", Self::NeverHelps),
        ("answers-between-updates", Self::AnswersBetweenUpdates),
    ];
}

/// A change of the members of a simulated round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// A process dies.
    Dies(usize),
    /// A process is stopped. The others continue without it.
    Leaves(usize),
    /// A stopped process is a member again, with its replica.
    Returns(usize),
    /// A new process joins.
    Joins,
}

/// The size and the faults of a simulated round. Times are nanoseconds.
#[derive(Debug, Clone)]
pub struct GossipScript {
    /// The number of processes at the start.
    pub processes: usize,
    /// The round.
    pub round: GossipRound,
    /// The number of updates of a process between two exchanges that it begins.
    pub gossip_steps: u64,
    /// The time in which each process computes an update, and one that joins.
    pub paces: Vec<u64>,
    /// The rates of lost and repeated messages, per thousand.
    pub loss: u64,
    /// The longest usual delay of a message.
    pub delay_max: u64,
    /// The changes of the members, in the order of their times.
    pub changes: Vec<(u64, MemberChange)>,
    /// The time of the last fault.
    pub calm: u64,
}

impl GossipScript {
    /// Draws a script.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Self {
        let processes = rng.range(1, 8) as usize;
        let round = GossipRound {
            step: Step(rng.range(0, 5)),
            start: rng.bits(),
            updates: rng.range(1, 60) as u32,
        };
        let is_calm = rng.per_mille(300);
        let mut changes = Vec::new();
        for _ in 0..if is_calm { 0 } else { rng.range(0, 4) } {
            let victim = rng.range(0, processes as u64 - 1) as usize;
            let at = rng.range(MS, 150 * MS);
            match rng.range(0, 3) {
                0 => changes.push((at, MemberChange::Joins)),
                1 => {
                    changes.push((at, MemberChange::Leaves(victim)));
                    let back = at + rng.range(5 * MS, 80 * MS);
                    changes.push((back, MemberChange::Returns(victim)));
                }
                _ => changes.push((at, MemberChange::Dies(victim))),
            }
        }
        changes.sort_by_key(|(at, _)| *at);
        let last = changes.last().map_or(0, |(at, _)| *at);
        let mut paces: Vec<u64> = (0..processes).map(|_| rng.range(2, 12) * MS).collect();
        if rng.per_mille(400) {
            paces[0] *= 6;
        }
        Self {
            processes,
            round,
            gossip_steps: rng.range(1, 3),
            paces,
            loss: if is_calm { 0 } else { rng.range(0, 120) },
            delay_max: rng.range(MS / 20, MS),
            changes,
            calm: if is_calm { 0 } else { last + 200 * MS },
        }
    }

    /// Returns whether nothing fails.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.calm == 0
    }

    /// Returns the time in which a process computes an update.
    #[must_use]
    pub fn pace(&self, process: usize) -> u64 {
        self.paces.get(process).copied().unwrap_or(5 * MS)
    }
}
