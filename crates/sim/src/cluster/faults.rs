//! [`Fault`] and [`Script`]: the faults of a seed and their times.

use crate::clock::{MS, SECOND};
use crate::cluster::model::{PARAMETERS, SimulatedDivision};
use crate::rng::Rng;

/// A fault. Hosts and processes are identified by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to the workers in these slots.
    Kill(Vec<usize>),
    /// SIGSTOP to a worker, and SIGCONT after a delay.
    Pause(usize, u64),
    /// SIGKILL to a coordinator; another one starts after a delay.
    KillCoordinator(usize, u64),
    /// SIGSTOP to a coordinator, and SIGCONT after a delay.
    PauseCoordinator(usize, u64),
    /// A partition: no message from these hosts reaches any other host for some time.
    Partition {
        /// The hosts of one side, as bits.
        side: u64,
        /// Whether messages in the other direction are lost too.
        is_two_way: bool,
        /// The duration.
        duration: u64,
    },
    /// A cut of the link between two workers in both directions for some time.
    Link(usize, usize, u64),
    /// SIGTERM to a worker.
    Drain(usize),
    /// A request for another number of workers.
    Scale(u32),
    /// SIGTERM to the job.
    Stop,
}

/// The setup and the faults of a seed.
#[derive(Debug, Clone)]
pub struct Script {
    /// The number of worker slots.
    pub workers: usize,
    /// The number of workers at the start.
    pub wanted: u32,
    /// The minimum number of workers.
    pub workers_min: u32,
    /// The number of coordinators, including those started by mistake.
    pub coordinators: usize,
    /// The number of logical shards.
    pub shards: u32,
    /// The number of steps of the run.
    pub steps: u64,
    /// The rates of lost and of duplicated datagrams, per thousand.
    pub loss: u64,
    /// The longest usual delay.
    pub delay_max: u64,
    /// Whether only a majority of the members may continue.
    pub is_majority: bool,
    /// How the state is divided among the workers, if it is.
    pub division: Option<SimulatedDivision>,
    /// The faults and their times.
    pub faults: Vec<(u64, Fault)>,
    /// The end of all faults.
    pub calm: u64,
}

impl Script {
    /// Returns the script of a seed.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Self {
        let workers = rng.range(2, 6) as usize;
        let coordinators = rng.range(1, 2) as usize;
        let wanted = if rng.per_mille(200) {
            rng.range(1, workers as u64)
        } else {
            workers as u64
        };
        let mut script = Self {
            workers,
            wanted: wanted as u32,
            workers_min: if wanted > 1 && rng.per_mille(250) {
                2
            } else {
                1
            },
            coordinators,
            shards: rng.range(6, 9) as u32,
            steps: rng.range(10, 20),
            loss: if rng.per_mille(500) {
                rng.range(0, 100)
            } else {
                0
            },
            delay_max: rng.range(1, 30) * MS,
            is_majority: rng.per_mille(150),
            division: rng.per_mille(500).then(|| SimulatedDivision {
                copies: rng.range(1, 2) as u32,
                slices_max: rng.range(2, PARAMETERS as u64) as usize,
                servers: 0,
            }),
            faults: Vec::new(),
            calm: 0,
        };
        // From numbers that were drawn before, so that it changes no other draw.
        let has_servers = script.shards == 6 && script.steps.is_multiple_of(2);
        if let Some(division) = script.division.as_mut().filter(|_| has_servers) {
            division.servers = 1 + division.slices_max % 2;
        }
        let mut drains = 0;
        let count = rng.range(0, 6);
        for _ in 0..count {
            let at = rng.range(300, 5000) * MS;
            let fault = script.fault(rng);
            // A drained slot is not used again; enough slots must remain.
            let is_drain = matches!(fault, Fault::Drain(_));
            drains += usize::from(is_drain);
            if !is_drain || drains + script.workers_min as usize <= workers {
                script.faults.push((at, fault));
            }
        }
        script.faults.sort_by_key(|(at, _)| *at);
        script.calm = script
            .faults
            .last()
            .map_or(0, |(at, _)| at + rng.range(0, 5 * SECOND));
        script
    }

    fn fault(&self, rng: &mut Rng) -> Fault {
        let worker = rng.range(0, self.workers as u64 - 1) as usize;
        let coordinator = rng.range(0, self.coordinators as u64 - 1) as usize;
        let hosts = self.workers + self.coordinators + 1;
        let long = rng.range(50, 3500) * MS;
        match rng.range(0, 99) {
            0..=24 => Fault::Kill(vec![worker]),
            25..=34 => {
                let half = rng.bits();
                Fault::Kill(
                    (0..self.workers)
                        .filter(|place| half >> place & 1 == 1)
                        .collect(),
                )
            }
            35..=49 => Fault::Pause(worker, long),
            50..=59 => Fault::KillCoordinator(coordinator, long),
            60..=66 => Fault::PauseCoordinator(coordinator, long),
            67..=83 => {
                let side = rng.bits() & ((1 << hosts) - 1);
                Fault::Partition {
                    side,
                    is_two_way: rng.per_mille(700),
                    duration: long,
                }
            }
            84..=88 => {
                let other = (worker + 1) % self.workers;
                Fault::Link(worker, other, long)
            }
            89..=93 => Fault::Drain(worker),
            94..=97 => Fault::Scale(rng.range(1, self.workers as u64) as u32),
            _ => Fault::Stop,
        }
    }
}
