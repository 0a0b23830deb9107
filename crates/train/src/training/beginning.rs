//! [`Beginning`]: the state of a [`Training`] before its first step. It is the checkpoint that every run has.
//!
//! Members that have no complete state together look for one in this order: silent workers that may have the missing parts
//! (`elastic.state_wait_s`), copies in memory, the newest checkpoint, the beginning. The weights are drawn again or read from the
//! initial file. Other vectors are zeros, except a few (the loss scale, factors, predictors) that each worker keeps as a copy. So
//! nothing else has to be stored, and no process has to be replaced.
//!
//! The coordinator does not know which worker has which parts. The members of a generation find out, report `lacks_state` and
//! leave. The coordinator knows which workers are silent and which have ended; it decides when the next generation starts, and for
//! which workers it waits (`GenerationAssignment::awaited`).

use ronde_core::{Event, Rank, Step};
use ronde_parallel::VectorKind;
use ronde_protocol::transaction::MemberState;

use super::Training;
use super::state_copies::StateCopies;
use crate::error::TrainError;
use crate::model_copies::ModelCopies;

/// What the seed or the initial file do not determine of the state before the first step. All vectors that are not here are zeros,
/// apart from the weights.
pub(super) struct Beginning {
    session: Vec<u8>,
    progress: String,
    /// The vectors that every rank holds completely, such as the loss scale, with their numbers.
    whole: Vec<(usize, Vec<f32>)>,
}

impl Training {
    /// Keeps what [`Training::begin_again`] needs, before the first step or any checkpoint. Memory: the vectors that every rank
    /// holds completely, besides the weights.
    pub(super) fn keep_beginning(&mut self) {
        let vectors = self.policy.state().vectors();
        let vectors = vectors.into_iter().enumerate().skip(1);
        let whole = vectors.filter(|(_, vector)| vector.kind == VectorKind::Whole);
        let whole = whole.map(|(number, vector)| (number, vector.values.to_vec()));
        self.initial.rest = Some(Beginning {
            session: self.session.cursor(),
            progress: self.decisions.encode(),
            whole: whole.collect(),
        });
    }

    /// Returns to the state before the first step, if a member has left it: `members` have no complete state together, and there is
    /// no checkpoint. All members call it together.
    ///
    /// # Errors
    /// A peer was lost, a layer does not know its initial values any more, or the initial file cannot be read again.
    pub(super) fn begin_again(&mut self, members: &[MemberState]) -> Result<(), TrainError> {
        let lost = members.iter().map(|member| member.next).max();
        let Some(lost) = lost.filter(|lost| *lost > Step(0)) else {
            return Ok(());
        };
        let even = self.even_mesh()?;
        self.regroup(even)?;
        self.slices.give_up();
        let mine = self.own_slices();
        self.reset_state(&mine)?;
        self.load_beginning()?;
        self.slices.loaded(mine);
        if let Some(initial) = &mut self.initial.weights {
            initial.give_up();
        }
        self.share_initial_weights()?;
        if self.member.rank == Rank(0) {
            self.member.tracker.record(Event::RunRestarted {
                lost,
                reason: format!(
                    "a part of the state before step {lost} was lost with the workers that held it, and there is no checkpoint"
                ),
            });
        }
        Ok(())
    }

    /// Loads everything but the weights.
    fn load_beginning(&mut self) -> Result<(), TrainError> {
        let Some(beginning) = &self.initial.rest else {
            return Ok(());
        };
        let mut edit = self.policy.edit();
        let mut vectors = edit.vectors_mut();
        for vector in vectors.iter_mut().skip(1) {
            vector.values.fill(0.0);
        }
        for (number, values) in &beginning.whole {
            vectors[*number].values.copy_from_slice(values);
        }
        drop(vectors);
        edit.reload();
        self.copies = ModelCopies::new(&self.plan.config.train, self.policy.state().held_weights());
        self.decisions.restore(&beginning.progress)?;
        self.state_copies = StateCopies::default();
        self.gathered = None;
        self.reports.forget_last();
        let digest = self.policy.state().digest(None);
        if !self.session.resume(&beginning.session, digest) {
            return Err(TrainError::Impossible {
                problem: "the state before the first step is inconsistent".to_owned(),
                hint: "this is a bug of ronde; please report it".to_owned(),
            });
        }
        Ok(())
    }
}
