//! What ranks tell each other with their votes, and the cursor of a session that goes on later.

use crate::Step;
use crate::session::rejoin;
use crate::session::{LastVote, Session};

/// What a rank wishes all to do after the step that it votes on, and to know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wishes {
    /// Save the state.
    pub save: bool,
    /// Train no further.
    pub stop: bool,
    /// Its state is not complete yet: it takes it over from others, holds no shard, and its weights are not
    /// compared. A session says so by itself.
    pub heals: bool,
}

impl Wishes {
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.save) | u64::from(self.stop) << 1 | u64::from(self.heals) << 2
    }

    pub(super) fn from_bits(bits: u64) -> Result<Self, String> {
        let [save, stop, heals] = [1, 2, 4].map(|bit| bits & bit == bit);
        if bits > 7 {
            return Err(format!("wishes {bits}"));
        }
        Ok(Self { save, stop, heals })
    }

    /// What any of them wishes.
    pub(super) fn all(each: impl Iterator<Item = Self>) -> Self {
        each.fold(Self::default(), |all, one| Self {
            save: all.save || one.save,
            stop: all.stop || one.stop,
            heals: all.heals || one.heals,
        })
    }
}

impl Session {
    /// Wishes for something with the next vote; all ranks see it in [`super::Committed::wishes`] of the
    /// same step. It is repeated until a vote has carried it.
    pub fn wish(&mut self, wishes: Wishes) {
        self.wishes = Wishes::all([self.wishes, wishes].into_iter());
    }

    /// Tells all ranks something with the next vote that succeeds; they find it in
    /// [`super::Committed::notes`]. A rank whose vote failed may tell it twice. Cost: its bytes to each rank.
    pub fn attach(&mut self, note: Vec<u8>) {
        self.note = note;
    }

    /// A vote has carried what was to be told.
    pub(super) fn told(&mut self) {
        self.wishes = Wishes::default();
        self.note.clear();
    }

    /// All that a later session of the same plan needs, beside the state of the model, to go on as if
    /// it were this one: the next step, the samples and the ledger. Equal on all ranks. About two bits a
    /// sample of the data set.
    #[must_use]
    pub fn cursor(&self) -> Vec<u8> {
        rejoin::encode(
            self.next,
            self.samples,
            &LastVote::default(),
            &self.ledger.words(),
        )
    }

    /// Goes on where [`Session::cursor`] was taken; `digest` as for [`Session::set_digest`], of the state
    /// that belongs to it. False, and nothing is changed, when the bytes are not a cursor of this data.
    #[must_use]
    pub fn resume(&mut self, cursor: &[u8], digest: u64) -> bool {
        let resumed = self.restore(cursor).is_ok();
        if resumed {
            self.healed(digest);
        }
        resumed
    }

    /// Whether nothing has been trained yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.next == Step(0)
    }

    /// Whether the state of this rank is complete: not while it takes it over from others.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}
