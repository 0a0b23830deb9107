//! [`GenerationConnector`]: connects a worker to its peers in each generation of its job.

use std::net::TcpListener;
use std::sync::Arc;

use ronde_comm::JoinCancellation;
use ronde_core::{CollectiveError, Generation, Group, Recovery};
use ronde_protocol::{Assignment, Departure, JobMember, MembershipError, MembershipPolicy};

use crate::error::TrainError;

/// A function that connects a worker to the peers of an assignment. Peers connect to the listener, if there is one; the
/// attempt is cancelled when its generation ends before all peers are connected.
pub type ConnectPeers = dyn Fn(&Assignment, Option<TcpListener>, JoinCancellation) -> Result<Arc<dyn Group>, TrainError>
    + Send
    + Sync;

/// Connects a worker to its peers: the source of its assignments, and the listener that peers connect to.
pub struct GenerationConnector {
    member: Arc<dyn JobMember>,
    listener: Option<TcpListener>,
    connect: Box<ConnectPeers>,
}

impl GenerationConnector {
    /// Creates a connector for a worker whose peers connect to `listener` in every generation. A worker without peers
    /// needs no listener.
    #[must_use]
    pub fn new(
        member: Arc<dyn JobMember>,
        listener: Option<TcpListener>,
        connect: Box<ConnectPeers>,
    ) -> Self {
        Self {
            member,
            listener,
            connect,
        }
    }

    /// Returns the worker's membership in its job.
    #[must_use]
    pub fn member(&self) -> &dyn JobMember {
        &*self.member
    }

    /// Joins the generation of an assignment, or a later one if that one has already ended.
    ///
    /// # Errors
    /// As [`GenerationConnector::next`].
    pub fn first(
        &self,
        assignment: &Assignment,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        let is_elastic = assignment.policy == MembershipPolicy::Elastic;
        match self.connect_to(assignment) {
            Ok(group) => Ok((assignment.clone(), group)),
            Err(error) if is_elastic && error.recovery() == Recovery::Rejoin => {
                self.next_after(departure(assignment.generation, &error))
            }
            Err(error) => Err(error),
        }
    }

    /// Leaves a generation and joins a later one, with as many attempts as needed.
    ///
    /// # Errors
    /// No later generation has this worker, or its members have another plan.
    pub fn next(
        &self,
        left: Generation,
        cause: &str,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        self.next_after(Departure {
            left,
            cause: cause.to_owned(),
            unreachable: None,
        })
    }

    fn next_after(&self, mut left: Departure) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        loop {
            let assignment = match self.member.next(Some(left)) {
                Err(MembershipError::FixedMembers { cause }) => {
                    return Err(TrainError::NoNextGeneration { cause });
                }
                other => other?,
            };
            match self.connect_to(&assignment) {
                Ok(group) => return Ok((assignment, group)),
                Err(error) if error.recovery() == Recovery::Rejoin => {
                    left = departure(assignment.generation, &error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn connect_to(&self, assignment: &Assignment) -> Result<Arc<dyn Group>, TrainError> {
        let listener = self.listener.as_ref().map(TcpListener::try_clone);
        let listener = listener
            .transpose()
            .map_err(|source| TrainError::Listener { source })?;
        let (member, generation) = (Arc::clone(&self.member), assignment.generation);
        let is_over = move || member.pending().is_some_and(|newest| newest > generation);
        let group = (self.connect)(assignment, listener, JoinCancellation::when(is_over))?;
        self.member.entered(generation, group.clone());
        Ok(group)
    }
}

/// Returns the departure of a worker that could not join a generation.
fn departure(left: Generation, error: &TrainError) -> Departure {
    let unreachable = match error.collective() {
        Some(CollectiveError::Unreachable { peer, .. }) => Some(*peer),
        _ => None,
    };
    Departure {
        left,
        cause: error.to_string(),
        unreachable,
    }
}
