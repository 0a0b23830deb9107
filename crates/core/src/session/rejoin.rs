//! How a session goes on in the next generation: [`Session::rejoin`].

use std::sync::Arc;

use crate::session::bytes::Reader;
use crate::session::standing::{Course, Courses, Standing};
use crate::session::{Committed, LastVote, Session, SessionError};
use crate::shards::ShardPlan;
use crate::{CollectiveError, Collectives, CollectivesExt, Generation, Step};

/// What came of a rejoin.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejoined {
    /// What each rank does before the next step.
    pub courses: Courses,
    /// For [`Course::Apply`]: the step that is final now, whose gradient the caller applies.
    pub committed: Option<Committed>,
}

impl Session {
    /// Goes on in another group, all members of which call this first. `holds_gradient`: whether the
    /// caller kept the complete reduced gradient of [`Session::next_step`].
    ///
    /// A member that has to [`Course::Heal`] has the cursor and the ledger of the others afterwards,
    /// but not yet the weights: those the caller fetches, and then calls [`Session::healed`]. Cost: one small all-gather; one more that
    /// carries the last vote when somebody missed it, and the ledger when somebody heals.
    ///
    /// # Errors
    /// The exchange failed, or what came is of another run. The session is then as before, but for
    /// the group, and can rejoin once more.
    pub fn rejoin(
        &mut self,
        group: Arc<dyn Collectives>,
        generation: Generation,
        shards: ShardPlan,
        holds_gradient: bool,
    ) -> Result<Rejoined, SessionError> {
        self.group = group;
        self.generation = generation;
        self.shards = shards;
        self.newest = generation;
        let standings = self.exchange_standings(holds_gradient)?;
        let courses = Courses::of(&standings).ok_or(SessionError::StateLost)?;
        let mut committed = None;
        let (someone_applies, someone_heals) = (
            courses.each.contains(&Course::Apply),
            courses.each.contains(&Course::Heal),
        );
        if someone_applies || someone_heals {
            let leads = self.group.rank().index() == courses.leader();
            let told = match leads {
                true => self.snapshot(someone_heals),
                false => Vec::new(),
            };
            let told = self.gather(&told)?;
            match courses.each[self.group.rank().index()] {
                Course::Level => {}
                Course::Apply => committed = Some(self.adopt(&told)?),
                Course::Heal => self
                    .restore(&told)
                    .map_err(|problem| self.broken(problem))?,
            }
        }
        Ok(Rejoined { courses, committed })
    }

    /// This rank has the whole state of the others now; `digest` as for [`Session::set_digest`].
    pub fn healed(&mut self, digest: u64) {
        self.digest = Some(digest);
        self.is_whole = true;
    }

    /// Shares the shards out anew, from the next step on. All ranks call it at the same step.
    pub fn reshard(&mut self, shards: ShardPlan) {
        self.shards = shards;
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<u8>, SessionError> {
        let told = self.group.all_gather(bytes);
        told.map_err(|source| self.vote_failed(source))
    }

    fn vote_failed(&self, source: CollectiveError) -> SessionError {
        let step = self.next;
        SessionError::Vote { step, source }
    }

    fn broken(&self, problem: String) -> SessionError {
        SessionError::BrokenVote { rank: 0, problem }
    }

    fn exchange_standings(&self, holds_gradient: bool) -> Result<Vec<Standing>, SessionError> {
        let mut mine = self.next.0.to_le_bytes().to_vec();
        mine.push(u8::from(holds_gradient));
        mine.push(u8::from(self.is_whole));
        let told = self.gather(&mine)?;
        if told.len() != mine.len() * self.group.size() {
            return Err(self.broken(format!("{} bytes of standings", told.len())));
        }
        let each = told.chunks_exact(mine.len()).map(|bytes| {
            let (next, holds) = bytes.split_at(8);
            Standing {
                next: Step(u64::from_le_bytes(next.try_into().unwrap_or_default())),
                holds_gradient: holds[0] == 1,
                is_whole: holds[1] == 1,
            }
        });
        Ok(each.collect())
    }

    /// The last vote, and for those that heal the cursor and the ledger.
    fn snapshot(&self, with_ledger: bool) -> Vec<u8> {
        let last = &self.last;
        let ledger = if with_ledger {
            self.ledger.words()
        } else {
            Vec::new()
        };
        encode(self.next, self.samples, last, &ledger)
    }

    /// Commits the step that the others have committed with the votes that they saw.
    fn adopt(&mut self, told: &[u8]) -> Result<Committed, SessionError> {
        let (_, _, last, _) = read(told).map_err(|problem| self.broken(problem))?;
        let open = self.begin_step();
        self.settle(&open, last)
    }

    pub(super) fn restore(&mut self, told: &[u8]) -> Result<(), String> {
        let (next, samples, last, ledger) = read(told)?;
        if !self.ledger.take_over(&ledger) {
            return Err("a ledger of another data set".to_owned());
        }
        self.next = next;
        self.samples = samples;
        self.last = last;
        self.digest = None;
        self.is_whole = false;
        Ok(())
    }
}

/// Where a session stands, as [`read`] takes it.
pub(super) fn encode(next: Step, samples: u64, last: &LastVote, ledger: &[u64]) -> Vec<u8> {
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
    let mut reader = Reader(bytes);
    let (next, samples) = (Step(reader.u64()?), reader.u64()?);
    let (generation, ranks) = (Generation(reader.u64()?), reader.u64()?);
    let (votes, words) = (reader.u64()? as usize, reader.u64()?);
    let votes = reader.bytes(votes)?.to_vec();
    let ledger = (0..words)
        .map(|_| reader.u64())
        .collect::<Result<Vec<u64>, String>>()?;
    reader.end()?;
    let last = LastVote {
        generation,
        ranks: ranks as usize,
        votes,
    };
    Ok((next, samples, last, ledger))
}
