//! Newtypes for numbers that are easily confused: ranks, steps, epochs, generations, shards.

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the number as an index.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// Returns the next number.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// The global index of a worker process, `0..world_size`.
    Rank,
    u32
);
number!(
    /// The index of a member in a process group, `0..group_size`.
    GroupRank,
    u32
);
number!(
    /// The version of the membership, from 1 on. Increases whenever a worker leaves or joins.
    Generation,
    u64
);

impl Generation {
    /// The first generation of a job.
    pub const FIRST: Self = Self(1);
}

number!(
    /// One optimizer update. Step 0 is the first; a committed step is never undone.
    Step,
    u64
);
number!(
    /// One pass over the data.
    Epoch,
    u64
);
number!(
    /// The index of a logical shard of the global batch, `0..logical_shards`.
    Shard,
    u32
);

/// The number of worker processes: at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct WorldSize(u32);

impl WorldSize {
    /// A world of one process.
    pub const ONE: Self = Self(1);

    /// Creates a world size; `None` if `count` is zero.
    #[must_use]
    pub fn new(count: u32) -> Option<Self> {
        (count > 0).then_some(Self(count))
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// Returns the number of processes as a length.
    #[must_use]
    pub fn len(self) -> usize {
        self.0 as usize
    }

    /// Returns false: a world has at least one process.
    #[must_use]
    pub fn is_empty(self) -> bool {
        false
    }

    /// Returns all ranks in order.
    pub fn ranks(self) -> impl ExactSizeIterator<Item = Rank> + Clone {
        (0..self.0).map(Rank)
    }
}

impl TryFrom<u32> for WorldSize {
    type Error = &'static str;

    fn try_from(count: u32) -> Result<Self, Self::Error> {
        Self::new(count).ok_or("a world has at least one worker")
    }
}

impl From<WorldSize> for u32 {
    fn from(size: WorldSize) -> Self {
        size.0
    }
}

impl std::fmt::Display for WorldSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}
