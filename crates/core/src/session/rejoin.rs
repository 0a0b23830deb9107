//! [`Session::rejoin`] and [`Session::resume`]: continue a session in the next generation, or from a cursor.

use std::sync::Arc;

use crate::session::bytes::ByteReader;
use crate::session::catch_up::{CatchUp, CatchUpPlan, StateReport};
use crate::session::{CommittedStep, LastVote, Session, SessionError, VoteRequests, vote};
use crate::shards::ShardPlan;
use crate::{CollectiveError, Collectives, CollectivesExt, Generation, Step};

/// The outcome of [`Session::rejoin`].
#[derive(Debug, Clone, PartialEq)]
pub struct RejoinOutcome {
    /// The action of each rank before the next step.
    pub plan: CatchUpPlan,
    /// The step that became final, if this rank's action is [`CatchUp::ApplyGradient`]; the caller applies its
    /// gradient.
    pub committed: Option<CommittedStep>,
}

impl Session {
    /// Continues the session in another group. All members of the group call this first. `holds_gradient`:
    /// whether the caller kept the complete reduced gradient of [`Session::next_step`].
    ///
    /// A member whose action is [`CatchUp::CopyState`] has the cursor and the ledger afterwards, but not yet the
    /// weights: the caller fetches them and then calls [`Session::healed`]. Cost: one small all-gather, and a
    /// second one that carries the last vote when a member missed it and the ledger when a member copies the
    /// state.
    ///
    /// # Errors
    /// The exchange failed, or the received data belongs to another run. The session is then unchanged except
    /// for its group, and can rejoin again.
    pub fn rejoin(
        &mut self,
        group: Arc<dyn Collectives>,
        generation: Generation,
        shards: ShardPlan,
        holds_gradient: bool,
    ) -> Result<RejoinOutcome, SessionError> {
        self.group = group;
        self.generation = generation;
        self.shards = shards;
        self.newest = generation;
        let reports = self.exchange_reports(holds_gradient)?;
        let plan = CatchUpPlan::new(&reports).ok_or(SessionError::StateLost)?;
        let mut committed = None;
        let (any_applies, any_copies) = (
            plan.each.contains(&CatchUp::ApplyGradient),
            plan.each.contains(&CatchUp::CopyState),
        );
        if any_applies || any_copies {
            let snapshot = match self.group.rank().index() == plan.source() {
                true => self.snapshot(any_copies),
                false => Vec::new(),
            };
            let snapshot = self.gather(&snapshot)?;
            match plan.each[self.group.rank().index()] {
                CatchUp::UpToDate => {}
                CatchUp::ApplyGradient => committed = Some(self.adopt(&snapshot)?),
                CatchUp::CopyState => self
                    .restore(&snapshot)
                    .map_err(|problem| self.broken(problem))?,
            }
        }
        Ok(RejoinOutcome { plan, committed })
    }

    /// Notes that this rank has received the whole state; `digest` as for [`Session::set_digest`].
    pub fn healed(&mut self, digest: u64) {
        self.digest = Some(digest);
        self.is_complete = true;
    }

    /// Replaces the assignment of shards to ranks, from the next step on. All ranks call it at the same step.
    pub fn reshard(&mut self, shards: ShardPlan) {
        self.shards = shards;
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<u8>, SessionError> {
        let gathered = self.group.all_gather(bytes);
        gathered.map_err(|source| self.vote_failed(source))
    }

    fn vote_failed(&self, source: CollectiveError) -> SessionError {
        let step = self.next;
        SessionError::Vote { step, source }
    }

    fn broken(&self, problem: String) -> SessionError {
        SessionError::BrokenVote { rank: 0, problem }
    }

    fn exchange_reports(&self, holds_gradient: bool) -> Result<Vec<StateReport>, SessionError> {
        let mut mine = self.next.0.to_le_bytes().to_vec();
        mine.push(u8::from(holds_gradient));
        mine.push(u8::from(self.is_complete));
        let gathered = self.gather(&mine)?;
        if gathered.len() != mine.len() * self.group.size() {
            return Err(self.broken(format!("{} bytes of state reports", gathered.len())));
        }
        let each = gathered.chunks_exact(mine.len()).map(|bytes| {
            let (next, holds) = bytes.split_at(8);
            StateReport {
                next: Step(u64::from_le_bytes(next.try_into().unwrap_or_default())),
                holds_gradient: holds[0] == 1,
                is_complete: holds[1] == 1,
            }
        });
        Ok(each.collect())
    }

    /// Returns the bytes from which a later session of the same plan resumes, in addition to the state of the
    /// model: the next step, the number of samples and the ledger. Equal on all ranks. About two bits per
    /// sample of the data set.
    #[must_use]
    pub fn cursor(&self) -> Vec<u8> {
        encode(
            self.next,
            self.samples,
            &LastVote::default(),
            &self.ledger.words(),
        )
    }

    /// Resumes at the step where [`Session::cursor`] was taken; `digest` as for [`Session::set_digest`], of the
    /// state at that step. Returns false and changes nothing when the bytes are not a cursor of this data set.
    #[must_use]
    pub fn resume(&mut self, cursor: &[u8], digest: u64) -> bool {
        let resumed = self.restore(cursor).is_ok();
        if resumed {
            self.healed(digest);
        }
        resumed
    }

    /// Encodes the last vote and the cursor, with the ledger for ranks that copy the state.
    fn snapshot(&self, with_ledger: bool) -> Vec<u8> {
        let last = &self.last;
        let ledger = if with_ledger {
            self.ledger.words()
        } else {
            Vec::new()
        };
        encode(self.next, self.samples, last, &ledger)
    }

    /// Commits the step that other ranks have committed, with the votes that they received.
    fn adopt(&mut self, snapshot: &[u8]) -> Result<CommittedStep, SessionError> {
        let (_, _, last, _) = read(snapshot).map_err(|problem| self.broken(problem))?;
        let open = self.begin_step();
        self.settle(&open, last)
    }

    pub(super) fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let (next, samples, last, ledger) = read(snapshot)?;
        if !self.ledger.take_over(&ledger) {
            return Err("the ledger belongs to another data set".to_owned());
        }
        self.next = next;
        self.samples = samples;
        self.last = last;
        self.digest = None;
        self.is_complete = false;
        Ok(())
    }
}

/// Encodes the position of a session for [`read`].
fn encode(next: Step, samples: u64, last: &LastVote, ledger: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48 + last.votes.len() + 8 * ledger.len());
    for word in [
        next.0,
        samples,
        last.generation.0,
        last.ranks as u64,
        last.votes.len() as u64,
        ledger.len() as u64,
    ] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&last.votes);
    ledger
        .iter()
        .for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

fn read(bytes: &[u8]) -> Result<(Step, u64, LastVote, Vec<u64>), String> {
    let mut reader = ByteReader(bytes);
    let (next, samples) = (Step(reader.u64()?), reader.u64()?);
    let (generation, ranks) = (Generation(reader.u64()?), reader.u64()?);
    let (votes, words) = (reader.u64()? as usize, reader.u64()?);
    let votes = reader.bytes(votes)?.to_vec();
    let ledger = (0..words)
        .map(|_| reader.u64())
        .collect::<Result<Vec<u64>, String>>()?;
    reader.end()?;
    let decoded = vote::decode_all(&votes, ranks as usize).map_err(|(_, problem)| problem)?;
    let last = LastVote {
        generation,
        ranks: ranks as usize,
        requests: VoteRequests::union(decoded.iter().map(|vote| vote.requests)),
        votes,
    };
    Ok((next, samples, last, ledger))
}
