//! Basic types of membership: workers, slots, terms and the [`GenerationAssignment`] of ranks.

use std::net::SocketAddr;

use ronde_core::{Generation, Rank, Step};
use serde::{Deserialize, Serialize};

use crate::assignment::GenerationPurpose;
use crate::reason::Reason;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// One worker process. A restarted process is a new worker; a process that was stopped and
    /// resumed is the same worker.
    WorkerId
);
number!(
    /// One coordinator process.
    CoordinatorId
);
number!(
    /// The number of a coordinator's period of leadership. Each coordinator that takes the lease
    /// increments it.
    Term
);
number!(
    /// A numbered position for one worker process, which keeps its number across restarts.
    WorkerSlot
);

/// The identity and address of a worker, as the other members need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// The worker process.
    pub worker: WorkerId,
    /// The slot that it runs in.
    #[serde(rename = "place")]
    pub slot: WorkerSlot,
    /// The host name, for display.
    pub host: String,
    /// The address at which its data plane listens.
    pub address: SocketAddr,
}

/// The state from which members without a state start when no member of the generation has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFrom {
    /// No start without a state: at least one member must hold it.
    Peers,
    /// The published checkpoint with this next step, or the initial weights at step 0 if there is
    /// none. A state that any member holds takes precedence.
    Checkpoint(Option<Step>),
}

/// When the members leave the previous generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchTiming {
    /// Immediately, because one of its members is lost.
    Now,
    /// After the step whose votes first mention this generation: no step is recomputed.
    Boundary,
}

/// The members of a generation by rank. Equal on all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationAssignment {
    /// The term in which it was published.
    pub term: Term,
    /// The generation's number. It only increases.
    pub generation: Generation,
    /// The members, rank 0 first. An empty list stops the job.
    pub members: Vec<MemberInfo>,
    /// The start of members without a state, when no member has one.
    pub start: StartFrom,
    /// The activity of the members.
    #[serde(default)]
    pub purpose: GenerationPurpose,
    /// The number of silent workers that may have parts of the state.
    #[serde(default)]
    pub awaited: u32,
    /// When members leave the previous generation.
    pub when: SwitchTiming,
    /// The reason for the new generation.
    pub reason: Reason,
}

impl GenerationAssignment {
    /// Returns the rank of a worker, or `None` if it is not a member.
    #[must_use]
    pub fn rank_of(&self, worker: WorkerId) -> Option<Rank> {
        rank_of(&self.members, worker)
    }
}

/// Returns the rank of a worker among `members`.
#[must_use]
pub fn rank_of(members: &[MemberInfo], worker: WorkerId) -> Option<Rank> {
    let index = members.iter().position(|member| member.worker == worker)?;
    Some(Rank(index as u32))
}

/// Returns at most `count` members of the next generation: the staying members in their order, then
/// the joining ones by slot. Ranks are therefore dense, and members that lack the state are last.
#[must_use]
pub fn succeed(
    stay: impl IntoIterator<Item = MemberInfo>,
    come: impl IntoIterator<Item = MemberInfo>,
    count: usize,
) -> Vec<MemberInfo> {
    let mut members: Vec<MemberInfo> = stay.into_iter().collect();
    let mut come: Vec<MemberInfo> = come.into_iter().collect();
    come.sort_by_key(|member| (member.slot, member.worker));
    members.extend(come);
    members.truncate(count);
    members
}
