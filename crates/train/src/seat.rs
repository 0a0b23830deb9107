//! [`Seat`]: how a worker gets from one generation of its job into the next.

use std::net::TcpListener;
use std::sync::Arc;

use ronde_comm::JoinCancellation;
use ronde_core::{Assignment, Generation, Group, Membership, Milestone, Recovery};

use crate::TrainError;

/// Connects a worker to the peers of an assignment. They reach it at the listener; a generation that
/// is over before all have met is given up.
pub type Connect =
    dyn Fn(&Assignment, TcpListener, JoinCancellation) -> Result<Arc<dyn Group>, TrainError> + Send + Sync;

/// A worker's place at the table: who says where it sits, and where its peers reach it.
pub struct Seat {
    membership: Option<Arc<dyn Membership>>,
    listener: TcpListener,
    connect: Box<Connect>,
}

impl Seat {
    /// A seat of a worker whose peers connect to `listener`, in every generation; without a
    /// `membership` there is only one.
    #[must_use]
    pub fn new(
        membership: Option<Arc<dyn Membership>>,
        listener: TcpListener,
        connect: Box<Connect>,
    ) -> Self {
        Self {
            membership,
            listener,
            connect,
        }
    }

    /// Whether there can be more than one generation.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.membership.is_some()
    }

    /// A newer generation that waits for this worker.
    #[must_use]
    pub fn pending(&self) -> Option<Generation> {
        self.membership.as_ref()?.pending()
    }

    /// As [`Membership::reached`].
    pub fn reached(&self, milestone: Milestone) {
        if let Some(membership) = &self.membership {
            membership.reached(milestone);
        }
    }

    /// As [`Membership::farewell`].
    #[must_use]
    pub fn farewell(&self) -> bool {
        self.membership.as_ref().is_none_or(|m| m.farewell())
    }

    /// Takes the place of an assignment, or one in a later generation when that one is over already.
    ///
    /// # Errors
    /// As [`Seat::next`].
    pub fn first(
        &self,
        assignment: &Assignment,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        match self.take(assignment) {
            Ok(group) => Ok((assignment.clone(), group)),
            Err(error) if error.recovery() == Recovery::Rejoin && self.is_kept() => {
                self.next(assignment.generation, &error.to_string())
            }
            Err(error) => Err(error),
        }
    }

    /// Leaves a generation and takes the place in a later one, as often as it takes.
    ///
    /// # Errors
    /// There is no later one for this worker, or its members hold another plan.
    pub fn next(
        &self,
        left: Generation,
        cause: &str,
    ) -> Result<(Assignment, Arc<dyn Group>), TrainError> {
        let (mut left, mut cause) = (left, cause.to_owned());
        loop {
            let Some(membership) = &self.membership else {
                return Err(TrainError::NoSeat { cause });
            };
            let assignment = membership.next(left, &cause)?;
            match self.take(&assignment) {
                Ok(group) => return Ok((assignment, group)),
                Err(error) if error.recovery() == Recovery::Rejoin => {
                    left = assignment.generation;
                    cause = error.to_string();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&self, assignment: &Assignment) -> Result<Arc<dyn Group>, TrainError> {
        let listener = self
            .listener
            .try_clone()
            .map_err(|source| TrainError::Listener { source })?;
        let (membership, generation) = (self.membership.clone(), assignment.generation);
        let pending = move || membership.as_ref().and_then(|m| m.pending());
        let give_up = JoinCancellation::when(move || pending().is_some_and(|newest| newest > generation));
        let group = (self.connect)(assignment, listener, give_up)?;
        if let Some(membership) = &self.membership {
            membership.entered(generation, group.clone());
        }
        Ok(group)
    }
}
