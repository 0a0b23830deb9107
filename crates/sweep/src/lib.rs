//! Search over the settings of a run: a grid, random values, or asynchronous successive halving.
//!
//! A [`SweepFile`] describes the search; [`Sweep`] is its state: which trials exist, which run is next, what each has
//! scored. Both are pure: the caller starts runs, stores the state and reports results. For a grid and for random values,
//! the trials depend on the file only, not on the order in which runs end. Start reading at [`Sweep`].

mod error;
mod file;
mod halving;
mod plot;
mod space;
mod state;
mod table;

pub use error::SweepError;
pub use file::{Goal, HalvingSettings, SearchKind, SweepFile};
pub use plot::svg;
pub use space::KeySpace;
pub use state::{RunOutcome, RunScore, Sweep, SweepRun, Trial, TrialRun};
pub use table::{csv, table};
