//! The words of membership: workers, places, terms, and [`Assignment`], who belongs to a generation.

use std::net::SocketAddr;

use ronde_core::{Generation, Rank, Step};
use serde::{Deserialize, Serialize};

use crate::Reason;

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
    /// One worker process. A process that is started again is another worker; one that was stopped and
    /// wakes is the same.
    WorkerId
);
number!(
    /// One coordinator process.
    CoordinatorId
);
number!(
    /// Counts the coordinators of a job. Whoever takes the lease takes the next term.
    Term
);
number!(
    /// Where a worker process may run: the same number for the process that is started there next.
    Place
);

/// A worker as the others need to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The process.
    pub worker: WorkerId,
    /// Where it runs.
    pub place: Place,
    /// The machine, for people.
    pub host: String,
    /// Where its data plane listens.
    pub address: SocketAddr,
}

/// What members do that hold no state when no member of the generation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartFrom {
    /// Nothing: some member must hold the state.
    Peers,
    /// They load the published checkpoint with this next step, or begin at step 0 from the initial
    /// weights where there is none. A state that any member holds takes precedence all the same.
    Checkpoint(Option<Step>),
}

/// When members leave the generation before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At once: a member of it is lost.
    Now,
    /// After the step in whose vote any member tells of this generation: nothing is redone.
    Boundary,
}

/// Who belongs to a generation, by rank. Equal on all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The term under which it was published.
    pub term: Term,
    /// Its number. Only grows.
    pub generation: Generation,
    /// Rank 0 first. Empty: the job stops.
    pub members: Vec<Member>,
    /// What members without a state do.
    pub start: StartFrom,
    /// When the generation before is left.
    pub when: When,
    /// Why there is a new generation.
    pub reason: Reason,
}

impl Assignment {
    /// The rank of a worker, if it has a place.
    #[must_use]
    pub fn rank_of(&self, worker: WorkerId) -> Option<Rank> {
        rank_of(&self.members, worker)
    }
}

/// The rank of a worker among `members`.
#[must_use]
pub fn rank_of(members: &[Member], worker: WorkerId) -> Option<Rank> {
    let index = members.iter().position(|member| member.worker == worker)?;
    Some(Rank(index as u32))
}

/// Members of the next generation: those who stay, in their order, then those who come, by place; at
/// most `count`. So ranks are dense, and whoever still lacks the state stands last.
#[must_use]
pub fn succeed(
    stay: impl IntoIterator<Item = Member>,
    come: impl IntoIterator<Item = Member>,
    count: usize,
) -> Vec<Member> {
    let mut members: Vec<Member> = stay.into_iter().collect();
    let mut come: Vec<Member> = come.into_iter().collect();
    come.sort_by_key(|member| (member.place, member.worker));
    members.extend(come);
    members.truncate(count);
    members
}
