//! How a [`Transaction`] continues in the next generation, or from a cursor.

use ronde_core::byte_reader::{ByteProblem, ByteReader};
use ronde_core::{Generation, Step};

use crate::transaction::LastVote;
use crate::transaction::catch_up::{CatchUp, CatchUpPlan, StateReport};
use crate::transaction::{
    CommittedStep, Transaction, TransactionError, VoteProblem, VoteRequests, vote,
};

impl Transaction {
    /// Returns this rank's report of its state, for all members of a new group. `holds_gradient`: whether the caller kept
    /// the complete reduced gradient of [`Transaction::next_step`].
    #[must_use]
    pub fn report(&self, holds_gradient: bool) -> Vec<u8> {
        let report = StateReport {
            next: self.next,
            holds_gradient,
            is_complete: self.is_complete,
        };
        report.encode()
    }

    /// Decides how all members reach the same state, from the reports of all, one after the other by rank.
    ///
    /// # Errors
    /// A report is invalid, or no member has a complete state.
    pub fn plan(&self, reports: &[u8]) -> Result<CatchUpPlan, TransactionError> {
        let reports = StateReport::decode_all(reports, self.place.ranks);
        let reports = reports.map_err(broken)?;
        CatchUpPlan::new(&reports).ok_or(TransactionError::StateLost)
    }

    /// Returns what this rank sends to all members after a plan: on its source, the last vote for members that missed it,
    /// with the ledger if a member copies the state; nothing on other ranks.
    #[must_use]
    pub fn snapshot(&self, plan: &CatchUpPlan) -> Vec<u8> {
        if self.place.rank.index() != plan.source() {
            return Vec::new();
        }
        let ledger = if plan.each.contains(&CatchUp::CopyState) {
            self.ledger.words()
        } else {
            Vec::new()
        };
        self.encode(&self.last, &ledger)
    }

    /// Executes this rank's action of a plan with the source's snapshot. Returns the step that became final, if the action
    /// is [`CatchUp::ApplyGradient`]; the caller applies its gradient. After [`CatchUp::CopyState`] the log has the cursor
    /// and the ledger; the caller fetches the weights and then calls [`Transaction::healed`].
    ///
    /// # Errors
    /// The snapshot belongs to another run. The log is then unchanged.
    pub fn catch_up(
        &mut self,
        plan: &CatchUpPlan,
        snapshot: &[u8],
    ) -> Result<Option<CommittedStep>, TransactionError> {
        match plan.each[self.place.rank.index()] {
            CatchUp::UpToDate => Ok(None),
            CatchUp::ApplyGradient => self.adopt(snapshot).map(Some),
            CatchUp::CopyState => self.restore(snapshot).map(|()| None).map_err(broken),
        }
    }

    /// Returns the bytes from which a later log of the same plan resumes, in addition to the state of the
    /// model: the next step, the numbers of samples and updates, and the ledger. Equal on all ranks. About two bits per
    /// sample of the data set.
    #[must_use]
    pub fn cursor(&self) -> Vec<u8> {
        self.encode(&LastVote::default(), &self.ledger.words())
    }

    /// Resumes at the step where [`Transaction::cursor`] was taken; `digest` as for [`Transaction::set_digest`], of the
    /// state at that step. Returns false and changes nothing when the bytes are not a cursor of this data set.
    #[must_use]
    pub fn resume(&mut self, cursor: &[u8], digest: u64) -> bool {
        let resumed = self.restore(cursor).is_ok();
        if resumed {
            self.healed(digest);
        }
        resumed
    }

    /// Commits the step that other ranks have committed, with the votes that they received.
    fn adopt(&mut self, snapshot: &[u8]) -> Result<CommittedStep, TransactionError> {
        let position = read(snapshot).map_err(broken)?;
        let open = self.begin_step();
        self.settle(&open, position.last)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), VoteProblem> {
        let position = read(snapshot)?;
        if !self.ledger.take_over(&position.ledger) {
            return Err(VoteProblem::Ledger);
        }
        (self.next, self.samples) = (position.next, position.samples);
        (self.updates, self.last) = (position.updates, position.last);
        self.digest = None;
        self.is_complete = false;
        Ok(())
    }

    /// Encodes the position of the log for [`read`].
    fn encode(&self, last: &LastVote, ledger: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(56 + last.votes.len() + 8 * ledger.len());
        for word in [
            self.next.0,
            self.samples,
            self.updates,
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
}

fn broken(problem: VoteProblem) -> TransactionError {
    TransactionError::BrokenVote { rank: 0, problem }
}

/// The decoded form of [`Transaction::snapshot`] and [`Transaction::cursor`].
struct LogSnapshot {
    next: Step,
    samples: u64,
    updates: u64,
    last: LastVote,
    ledger: Vec<u64>,
}

fn read(bytes: &[u8]) -> Result<LogSnapshot, VoteProblem> {
    let mut reader = ByteReader::new(bytes);
    let (next, samples, updates) = (Step(reader.u64()?), reader.u64()?, reader.u64()?);
    let (generation, ranks) = (Generation(reader.u64()?), reader.u64()?);
    let (votes, words) = (reader.u64()? as usize, reader.u64()?);
    let votes = reader.bytes(votes)?.to_vec();
    let ledger = (0..words)
        .map(|_| reader.u64())
        .collect::<Result<Vec<u64>, ByteProblem>>()?;
    reader.end()?;
    let decoded = vote::decode_all(&votes, ranks as usize).map_err(|(_, problem)| problem)?;
    let last = LastVote {
        generation,
        ranks: ranks as usize,
        requests: VoteRequests::union(decoded.iter().map(|vote| vote.requests)),
        votes,
    };
    Ok(LogSnapshot {
        next,
        samples,
        updates,
        last,
        ledger,
    })
}
