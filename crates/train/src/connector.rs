//! [`GenerationConnector`]: connects a worker to its peers in each generation of its job.

use std::net::TcpListener;
use std::sync::Arc;

use ronde_comm::JoinCancellation;
use ronde_core::{Assignment, Generation, Group, Membership, Milestone, Recovery};

use crate::TrainError;

/// A function that connects a worker to the peers of an assignment. Peers connect to the listener; the
/// attempt is cancelled when its generation ends before all peers are connected.
pub type ConnectPeers = dyn Fn(&Assignment, TcpListener, JoinCancellation) -> Result<Arc<dyn Group>, TrainError>
    + Send
    + Sync;

/// Connects a worker to its peers: the source of its assignments, and the listener that peers connect to.
pub struct GenerationConnector {
    membership: Option<Arc<dyn Membership>>,
    listener: TcpListener,
    connect: Box<ConnectPeers>,
}

impl GenerationConnector {
    /// Creates a connector for a worker whose peers connect to `listener` in every generation. Without a
    /// `membership` there is only one generation.
    #[must_use]
    pub fn new(
        membership: Option<Arc<dyn Membership>>,
        listener: TcpListener,
        connect: Box<ConnectPeers>,
    ) -> Self {
        Self {
            membership,
            listener,
            connect,
        }
    }

    /// Returns whether there can be more than one generation.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.membership.is_some()
    }

    /// Returns a newer generation that this worker can join.
    #[must_use]
    pub fn pending(&self) -> Option<Generation> {
        self.membership.as_ref()?.pending()
    }

    /// Reports a milestone; see [`Membership::reached`].
    pub fn reached(&self, milestone: Milestone) {
        if let Some(membership) = &self.membership {
            membership.reached(milestone);
        }
    }

    /// Ends the membership; see [`Membership::farewell`].
    #[must_use]
    pub fn finish(&self) -> bool {
        self.membership.as_ref().is_none_or(|m| m.farewell())
    }

    /// Joins the generation of an assignment, or a later one if that one has already ended.
    ///
    /// # Errors
    /// As [`GenerationConnector::next`].
    pub fn first(
        &self,
        assignment: &Assignment,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        match self.connect_to(assignment) {
            Ok(group) => Ok((assignment.clone(), group)),
            Err(error) if error.recovery() == Recovery::Rejoin && self.is_reusable() => {
                self.next(assignment.generation, &error.to_string())
            }
            Err(error) => Err(error),
        }
    }

    /// Leaves a generation and joins a later one, with as many attempts as needed.
    ///
    /// # Errors
    /// There is no later generation for this worker, or its members have another plan.
    pub fn next(
        &self,
        left: Generation,
        cause: &str,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        let (mut left, mut cause) = (left, cause.to_owned());
        loop {
            let Some(membership) = &self.membership else {
                return Err(TrainError::NoNextGeneration { cause });
            };
            let assignment = membership.next(left, &cause)?;
            match self.connect_to(&assignment) {
                Ok(group) => return Ok((assignment, group)),
                Err(error) if error.recovery() == Recovery::Rejoin => {
                    left = assignment.generation;
                    cause = error.to_string();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn connect_to(&self, assignment: &Assignment) -> Result<Arc<dyn Group>, TrainError> {
        let listener = self
            .listener
            .try_clone()
            .map_err(|source| TrainError::Listener { source })?;
        let (membership, generation) = (self.membership.clone(), assignment.generation);
        let pending = move || membership.as_ref().and_then(|m| m.pending());
        let give_up =
            JoinCancellation::when(move || pending().is_some_and(|newest| newest > generation));
        let group = (self.connect)(assignment, listener, give_up)?;
        if let Some(membership) = &self.membership {
            membership.entered(generation, group.clone());
        }
        Ok(group)
    }
}
